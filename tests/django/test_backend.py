"""The backend, as Django uses it; each test is a process of a real project on SQLite."""

from pathlib import Path

import pytest

from tests.rigs.django_shops import Shop
from tests.rigs.program import ended, python

pytestmark = pytest.mark.long


@pytest.mark.promise
def test_what_django_asks_of_a_backend(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
seen = []
def sees(task_result, **_):
    seen.append(task_result.id)
    1 / 0
djangotasks.signals.task_enqueued.connect(sees)

assert backend.supports_defer and backend.supports_async_task and backend.supports_get_result
assert not backend.supports_priority
result = note.enqueue(what=("a", 1))
assert result.status == "READY" and result.kwargs == {"what": ["a", 1]} and not result.attempts
assert seen == [result.id]
again = note.get_result(result.id)
assert again == result and again is not result and again.enqueued_at == result.enqueued_at
result.refresh()

async def asked():
    found = await later.aget_result((await later.aenqueue("x")).id)
    await found.arefresh()
    return found
found = asyncio.run(asked())
assert (found.args, found.task.queue_name, found.backend) == (["x"], "mail", "default")

at = datetime.now(UTC) + timedelta(days=3650)
found = note.get_result(note.using(run_after=at).enqueue("far").id)
assert found.task.run_after == at
[timer] = backend.store.pending(topic="django-task-default")
assert 0 <= timer.due_ms / 1000 - at.timestamp() < 0.0011  # never early

def raised(call):
    try:
        call()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
errors = djangotasks.exceptions
assert "TaskResultMismatch" in raised(lambda: later.get_result(result.id))
for id in ("unknown", "", 7, None, "x y", "\\0", "x" * 9999):
    assert "TaskResultDoesNotExist" in raised(lambda: note.get_result(id)), id
assert "--queue NAME" in raised(lambda: note.using(priority=5))
assert "'mail'" in raised(lambda: note.using(queue_name="fax"))
assert "aware" in raised(lambda: note.using(run_after=datetime(2030, 1, 1)))
assert "module level" in raised(lambda: task(lambda: None))
assert "JSON" in raised(lambda: note.enqueue(float("nan")))
assert "JSON" in raised(lambda: note.enqueue("\\ud800"))
assert "TypeError" in raised(lambda: note.enqueue(object()))
assert "keep what is large elsewhere" in raised(lambda: note.enqueue("x" * (1 << 20)))
other = task(type(note.func)(note.func.__code__, {}, "hidden"))
assert "is no task that this program knows" in raised(lambda: other.enqueue("x"))
assert backend.store.count("django-task-default") == 1
note.enqueue("x" * ((1 << 20) - 1000))
result = note.enqueue({1: ("a",), None: "b"})
assert result.args == [{"1": ["a"], "null": "b"}] and note.get_result(result.id) == result

import shutil
path = backend.settings[0]
shutil.rmtree(path)
result = note.enqueue("into another one")
assert path.exists() and note.get_result(result.id) == result
""")


@pytest.mark.slow
def test_settings_that_are_wrong_say_what_to_do(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
def said(queues=("default",), **options):
    made = TimerStoreBackend("default", {"QUEUES": queues, "OPTIONS": options})
    try:
        made.store
    except ValueError as e:
        told = [each.msg for each in made.check()]
        assert told == [f"TASKS['default']: {e}"], told
        return told[0]
assert '"path": BASE_DIR' in said()
assert "Name the whole path" in said(path="timers")
assert "path is 7" in said(path=7)
assert "It may have" in said(path="/a", paht="/a")
assert "keep_results is 0" in said(path="/a", keep_results=timedelta(0))
assert "keep_results is 'a'" in said(path="/a", keep_results="a")
assert "Pass a Config" in said(path="/a", config={})
assert "QUEUES is empty" in said([], path="/a")
assert "' ' is not allowed" in said(["a b"], path="/a")
assert list(backend.check()) == []
assert "keep_results is 9" in said(path="/a", keep_results=timedelta.max)
assert "Use ['mail']" in said("mail", path="/a")
assert "A queue is None" in said([None], path="/a")
assert "TASKS['default'] has it too" in TimerStoreBackend(
    "other", {"OPTIONS": {"path": str(backend.settings[0]) + "/../timers"}}
).check().__next__().msg
[error] = TimerStoreBackend("default", {"OPTIONS": None}).check()
assert "OPTIONS is None" in error.msg
""")
        for options, words in (('{"path": null}', "OPTIONS has no path"), ("{}", "no issues")):
            arguments = Shop(tmp_path, SHOP_OPTIONS=options)
            assert arguments.manage("check").wait(60) == (words != "no issues")
            assert words in shop.log.read_text()
        for given, words in (
            (("--queue", "fax"), "QUEUES has no fax. It has default, mail."),
            (
                ("--backend", "fax"),
                "CommandError: TASKS has no backend of timerstore that is named fax.",
            ),
            (("--threads", "0"), "threads is 0"),
        ):
            assert shop.worker(*given).wait(60)
            assert words in shop.log.read_text()


@pytest.mark.slow
def test_nothing_is_run_or_imported_because_a_message_names_it(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
import random
names = "os.system shop.tasks.no_task shop.tasks.Ran shop.tasks.gone antigravity.a timerstore.spark"
for name in (*names.split(), "note", "", ".", "shop.tasks.", "shop.tasks.note.func"):
    try:
        record.task_named(name)
        raise SystemExit(name)
    except InvalidTask:
        pass
assert "antigravity" not in sys.modules and "timerstore.spark" not in sys.modules
assert record.task_named("shop.tasks.note") is note

whole = record.encoded(note.get_result(note.enqueue("a").id))
odd = [None, True, 0, -1.5, 10**400, "x", "\\ud800", [], [[]], [["a"]], {}, {"a": 1}, "os.system"]
rnd, kept = random.Random(1), 0
for i in range(4000):
    if i % 2:
        told = json.loads(whole)
        told[rnd.choice(list(told))] = rnd.choice(odd)
        body = json.dumps(told).encode()
    else:
        at = rnd.randrange(len(whole))
        noise = bytes(rnd.randrange(256) for _ in range(3))
        body = whole[:at] + noise + whole[at + rnd.randrange(9) :]
    try:
        found = record.decoded("default", "id", body)
        assert found.task.func is note.func or found.task.module_path.startswith("shop.tasks.")
        kept += 1
    except (ValueError, InvalidTask):
        pass
assert kept
for body in (b" ", b"{}", b"[]", b"null", b"[" * 100_000, b"\\xff"):
    backend.store.put(body, topic="django-result", key="damaged", delay=60, replace=True)
    try:
        backend.get_result("damaged")
        raise SystemExit(body)
    except TaskResultDoesNotExist:
        pass
""")


@pytest.mark.slow
def test_what_was_enqueued_is_not_refused_later(tmp_path: Path) -> None:
    with Shop(tmp_path, SHOP_USE_TZ="0") as shop:
        id = shop.run("""
at = datetime.now() + timedelta(seconds=1)
print(json.dumps(later.using(run_after=at).enqueue("a").id))
""")
        shop.run(
            f"""
object.__setattr__(later, "priority", 5)  # as if `using` had changed it, with another backend
with consumer_of(backend, ["mail"], 2, 60):
    backend.queues.remove("mail")
    [found] = ended(backend.get_result({id!r}))
assert found.return_value == ["a"] and found.task.priority == 0, found
""",
            SHOP_USE_TZ="1",
        )


@pytest.mark.slow
def test_times_without_a_zone_are_in_that_of_the_settings(tmp_path: Path) -> None:
    with Shop(tmp_path, SHOP_USE_TZ="0") as shop:
        shop.run("""
at = datetime.now().replace(microsecond=0) + timedelta(hours=2)
found = note.get_result(note.using(run_after=at).enqueue("a").id)
assert found.task.run_after == at and found.enqueued_at.tzinfo is None
[timer] = backend.store.pending(topic="django-task-default")
assert timer.due_ms == at.timestamp() * 1000
assert abs(timer.due_ms / 1000 - time.time() - 7200) < 100
""")


def test_timerstore_does_not_import_django(tmp_path: Path) -> None:
    code = "import sys, timerstore; timerstore.open(sys.argv[1], share=True).close(); "
    python("-c", code + "assert 'django' not in sys.modules", tmp_path / "s")


def test_without_django_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules |= dict.fromkeys(('django', 'django_tasks')); "
    done = ended("-c", code + "import timerstore.django")
    assert done.returncode
    assert "pip install 'timerstore[django]'" in done.stderr
    assert "pip install django-tasks" in done.stderr
