"""Workers and web servers are killed at random: each task that a page answered for runs.

`DJANGO_KILLS=100 SEED=7 pytest tests/django/test_django_kill.py` does it more often.
"""

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.django_shops import Shop, end
from tests.tiers import SEED, how_many

pytestmark = [pytest.mark.on_disk, pytest.mark.slow]

KILLS = how_many("DJANGO_KILLS", 6, 60)


@pytest.mark.promise
@pytest.mark.timeout(KILLS * 20 + 200)
@pytest.mark.tier("prove", only=("process",))
@pytest.mark.parametrize("durability", ["group", "process"])
def test_each_task_that_was_answered_for_runs(
    durability: str, tmp_path: Path, record_property: Any
) -> None:
    rnd, answered = random.Random(f"{SEED} {durability}"), dict[str, str]()
    with Shop(tmp_path, SHOP_DURABILITY=durability) as shop:
        workers, web, number = [shop.worker() for _ in range(2)], shop.web(), 0
        for _ in range(KILLS):
            victim = rnd.choice([*workers, web.process])
            threading.Timer(rnd.uniform(0, 0.3), victim.kill).start()
            for _ in range(rnd.randrange(1, 60)):
                what = f"note{(number := number + 1)}"
                if id := web.ask(f"/enqueue/{what}"):
                    answered[id] = what
            end(victim)
            if victim is web.process:
                web = shop.web()
            else:
                workers[workers.index(victim)] = shop.worker()
        told = shop.run(f"""
answered = {answered!r}
results = ended(*map(note.get_result, answered))
assert {{each.status for each in results}} == {{"SUCCESSFUL"}}
ran = [each.what for each in Ran.objects.all()]
assert set(answered.values()) <= set(ran)
print(json.dumps([len(ran), len(set(ran)), sum(each.attempts for each in results)]))
""")
        assert len(answered) <= told[1] <= number
    record_property("kills", KILLS)
