"""What a step can wait for: each has a number of its own, for which the tests have a name."""

from tests.services.alone import NEEDS
from timerstore.services import needs


def test_each_has_a_number_of_its_own() -> None:
    numbers = [value for name, value in vars(needs).items() if name.isupper()]
    assert sorted(numbers) == list(range(len(numbers))) and needs.NOTHING == 0
    assert NEEDS.keys() == set(numbers)
