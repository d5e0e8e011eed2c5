"""Workers; each test has processes of a real project on SQLite."""

import ast
import re
import time
from pathlib import Path

import pytest

from tests.rigs.django_shops import Shop, end, stop
from tests.rigs.program import FILES
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.mark.promise
def test_a_task_that_ended_has_a_result(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        first, second = shop.worker(), shop.worker("--queue", "mail", "--threads", "1")
        shop.run("""
good, async_, told = ended(note.enqueue("a"), later.enqueue("b"), tell.enqueue())
assert good.return_value == "noted a" and async_.return_value == ["b"]
assert good.attempts == 1 and good.finished_at >= good.started_at >= good.enqueued_at
assert good.last_attempted_at == good.started_at and not good.errors
assert told.return_value["attempt"] == 1 and told.return_value["id"] == told.id
assert Ran.objects.get().what == "a"
kinds = "raise exit bytes object large nan surrogate unprintable mute".split()
said = "ValueError SystemExit ValueError TypeError InvalidArgument InvalidArgument Invalid Odd Mute"
for failed, kind in zip(ended(*map(fail.enqueue, kinds)), said.split()):
    assert failed.status == "FAILED" and failed.attempts == 1, failed
    [error] = failed.errors
    assert kind in error.exception_class_path and error.traceback, error
assert ended(fail.enqueue("raise"))[0].errors[0].exception_class is ValueError
""")
        assert stop(first) == stop(second) == 0
        assert "no such user" in shop.log.read_text()


@pytest.mark.slow
def test_signals_and_what_a_task_sees_of_itself(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
seen = []
for name in ("enqueued", "started", "finished"):
    def take(sender, task_result, name=name, **_):
        kept = backend.get_result(task_result.id)
        seen.append((name, sender, task_result.status, kept.status, len(kept.worker_ids)))
        1 / 0
    getattr(djangotasks.signals, f"task_{name}").connect(take, weak=False)
with consumer_of(backend, ["default"], 1, 60):
    for enqueued, count in ((note, 3), (fail, 6)):
        ended(enqueued.enqueue("raise"))
        while len(seen) < count:
            time.sleep(0.01)
assert {each[1] for each in seen} == {TimerStoreBackend}
for status in ("SUCCESSFUL", "FAILED"):
    rows = {name: told for name, _, *told in (seen[:3] if status == "SUCCESSFUL" else seen[3:])}
    assert rows["enqueued"][0] == "READY" and rows["started"] == ["RUNNING", "RUNNING", 1]
    assert rows["finished"] == [status, status, 1]
""")


@pytest.mark.promise
@pytest.mark.slow
def test_a_task_runs_after_its_time_over_restarts(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        id = shop.run("""
at = datetime.now(UTC) + timedelta(seconds=4)
print(json.dumps(note.using(run_after=at).enqueue("a").id))
""")
        end(shop.worker())
        shop.worker()
        shop.run(f"""
[result] = ended(note.get_result({id!r}))
assert result.started_at >= result.task.run_after and Ran.objects.count() == 1
""")


@pytest.mark.promise
@pytest.mark.slow
def test_a_task_whose_worker_was_killed_runs_again(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        first = shop.worker()
        id = shop.run("""
result = tell.enqueue(wait="for ever")
while result.status != "RUNNING":
    time.sleep(0.01)
    result.refresh()
print(json.dumps(result.id))
""")
        end(first)
        second = shop.worker()
        shop.run(f"""
[result] = ended(tell.get_result({id!r}))
assert result.attempts == result.return_value["attempt"] == 2
assert result.return_value["pid"] == {second.pid} and len(set(result.worker_ids)) == 2
assert result.last_attempted_at > result.started_at
""")


@pytest.mark.promise
@pytest.mark.slow
def test_a_task_that_runs_is_not_run_again_because_the_owner_ended(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        owner, gate = shop.web(), tmp_path / "gate"
        assert owner.ask("/enqueue/first")  # with this it opens the store
        id = shop.run(f"print(json.dumps(tell.enqueue(wait={str(gate)!r}).id))")
        workers = [shop.worker() for _ in range(2)]
        shop.run(f"""
result = tell.get_result({id!r})
while result.status != "RUNNING":
    time.sleep(0.01)
    result.refresh()
""")
        end(owner.process)
        wait_until(lambda: "It runs in the worker" in shop.log.read_text())
        gate.touch()
        shop.run(f"assert ended(tell.get_result({id!r}))[0].attempts == 1")
        assert [stop(each) for each in workers] == [0, 0]
        shop.run(f"assert tell.get_result({id!r}).attempts == 1")


@pytest.mark.slow
def test_a_task_that_kills_its_worker_fails_in_the_end(tmp_path: Path) -> None:
    with Shop(tmp_path, SHOP_ATTEMPTS="2") as shop:
        id = shop.run('print(json.dumps(fail.enqueue("kill").id))')
        assert [shop.worker().wait(60) for _ in range(2)] == [-9, -9]
        shop.worker()
        shop.run(f"""
[result] = ended(fail.get_result({id!r}))
assert result.status == "FAILED" and "began 2 times" in result.errors[0].traceback
""")


@pytest.mark.slow
def test_a_task_whose_name_is_gone_waits_for_it(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        id = shop.run('print(json.dumps(note.enqueue("a").id))')
        old = shop.worker(SHOP_WITHOUT="note")
        wait_until(lambda: "shop.tasks.note is no task" in shop.log.read_text())
        shop.run(
            f"""
[other] = ended(tell.enqueue())
try:
    backend.get_result({id!r})
    raise SystemExit("found")
except TaskResultDoesNotExist as e:
    assert "shop.tasks.note is no task" in str(e)
""",
            SHOP_WITHOUT="note",
        )
        end(old)
        shop.worker()
        shop.run(f"assert ended(note.get_result({id!r}))[0].return_value == 'noted a'")


@pytest.mark.slow
def test_results_are_forgotten_in_time(tmp_path: Path) -> None:
    with Shop(tmp_path, SHOP_OPTIONS='{"keep_results": 3}') as shop:
        shop.worker()
        shop.run("""
[result] = ended(note.enqueue("a"))
far = note.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue("far")
while True:
    try:
        result.refresh()
    except TaskResultDoesNotExist:
        break
    time.sleep(0.01)
assert datetime.now(UTC) - result.finished_at >= timedelta(seconds=3)
def behind():
    return sum(each.lag_count for each in backend.store.stats().groups)
while behind():
    time.sleep(0.01)
far.refresh()
""")


@pytest.mark.slow
def test_what_is_no_task_of_ours_holds_up_nothing(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.worker("--threads", "1")
        shop.run("""
for body, key in ((b"junk", "k"), (b"{}", None), (b"[1]", "k")):
    backend.store.put(body, topic="django-task-default", key=key)
ended(note.enqueue("a"))
""")
        wait_until(lambda: shop.log.read_text().count("is no task") > 1)


@pytest.mark.promise
@pytest.mark.slow
def test_a_task_in_the_transaction_of_the_database(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.worker()
        shop.run("""
from functools import partial
from timerstore.outbox import Outbox, Relay
outbox = Outbox()
with transaction.atomic():
    outbox.create(connection.connection)
put = partial(outbox.put, connection.connection)
for what in ("kept", "lost"):
    with transaction.atomic():
        Ran.objects.create(what=what)
        result = backend.enqueue(note, [what], {}, put=put)
        if what == "lost":
            transaction.set_rollback(True)
        else:
            kept = result
try:
    kept.refresh()
    raise SystemExit("put too soon")
except TaskResultDoesNotExist:
    pass
with Relay(backend.store, os.environ["SHOP"] + "/db.sqlite3"):
    while Ran.objects.count() < 2:
        time.sleep(0.01)
    ended(kept)
assert [each.what for each in Ran.objects.all()] == ["kept", "kept"]
""")


@pytest.mark.slow
def test_a_worker_that_is_asked_to_end_lets_its_tasks_end(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        first = shop.worker()
        id = shop.run("""
result = note.enqueue("a", seconds=2)
while result.status != "RUNNING":
    time.sleep(0.01)
    result.refresh()
print(json.dumps(result.id))
""")
        time.sleep(0.2)
        assert stop(first) == 0
        shop.run(f"""
found = note.get_result({id!r})
assert found.is_finished and found.attempts == 1
""")


@pytest.mark.slow
def test_a_result_waits_for_the_store_and_its_task_is_not_run_again(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
from timerstore.errors import *
errors, keep = [StoreFullError, PausedError, StoreClosedError, FlushFailedError], backend.keep
def refuse(result, *more):
    if result.is_finished and errors:
        raise errors.pop(0)("not now")
    keep(result, *more)
def leave(**_):
    raise SystemExit(1)
backend.keep = refuse
djangotasks.signals.task_finished.connect(leave)
result = note.enqueue("a")
with consumer_of(backend, ["default"], 2, 60):
    ended(result)
    time.sleep(2)
assert not errors
result.refresh()
assert result.status == "SUCCESSFUL" and result.attempts == Ran.objects.count() == 1
""")


@pytest.mark.slow
def test_what_its_own_worker_has_broken_off_runs_again_at_once(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
errors, keep = [MemoryError, KeyError], backend.keep
def break_off(result, *more):
    if result.is_finished == (len(errors) == 2) and errors:
        raise errors.pop(0)
    keep(result, *more)
backend.keep = break_off
result = tell.enqueue()
with consumer_of(backend, ["default"], 2, 3600):
    ended(result)
assert not errors and result.status == "SUCCESSFUL" and result.attempts == 2
""")


@pytest.mark.slow
def test_a_task_may_change_what_it_is_given(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
with consumer_of(backend, ["default"], 2, 60):
    good, bad = ended(change.enqueue([1, [2]]), change.enqueue([1], how="so"))
assert good.return_value == 3 and (good.args, good.kwargs) == ([[1, [2]]], {})
assert bad.status == "FAILED" and (bad.args, bad.kwargs) == ([[1]], {"how": "so"})
for each in (good, bad):
    found = change.get_result(each.id)
    assert (found.args, found.kwargs, found.attempts) == (each.args, each.kwargs, 1)
    assert len(found.worker_ids) == 1
""")


@pytest.mark.slow
def test_a_task_leaves_its_language_and_its_zone_to_no_other(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
with consumer_of(backend, ["default"], 1, 60):
    for _ in range(3):
        [result] = ended(speak.enqueue("de"))
        assert result.return_value == ["en-us", "Asia/Tokyo"]
""")


@pytest.mark.slow
def test_a_run_that_ends_too_late_changes_no_result(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.run("""
said = []
def take(task_result, **_):
    said.append(task_result.return_value)
djangotasks.signals.task_finished.connect(take)
with consumer_of(backend, ["default"], 2, 1):
    [result] = ended(slow_at_first.enqueue())
assert result.return_value == result.attempts == 2  # the block waits for the first run
assert slow_at_first.get_result(result.id) == result and said == [2]
""")


@pytest.mark.slow
def test_a_result_is_there_for_as_long_as_its_task_runs(tmp_path: Path) -> None:
    with Shop(tmp_path, SHOP_OPTIONS='{"keep_results": 0.5}') as shop:
        shop.run("""
result = note.enqueue("a", seconds=3)
time.sleep(1)
result.refresh()
with consumer_of(backend, ["default"], 2, 60):
    while not Ran.objects.count():
        assert backend.get_result(result.id).status in ("READY", "RUNNING", "SUCCESSFUL")
        time.sleep(0.01)
""")


def test_what_cannot_be_run_comes_again_for_a_day_and_a_half() -> None:
    text = (FILES / "timerstore/django/management/commands/timerstore_worker.py").read_text()
    [waits] = re.findall(r"WAITS_S: Final = (\(.*\))", text)
    [count] = re.findall(r"COMES_MAX: Final = (\d+)", text)
    waits_s = list(ast.literal_eval(waits))
    waits_s += waits_s[-1:] * (int(count) - len(waits_s))
    assert 35.5 < sum(waits_s) / 3600 < 36.5
