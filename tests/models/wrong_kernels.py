"""Wrong variants of the interpreted kernels: each departs from the protocol in one place.

A variant is a change of a kernel's text. Where that text is not found any more, the kernel has been
written anew: say there what the variant says here.
"""

import __future__

import contextlib
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

from tests.rigs.baton import modules

Change = tuple[str, str, str, str]  # module, function, its text, the wrong text

WRONG: dict[str, list[Change]] = {
    "C moves before the head is read": [
        (
            "services.dequeue_get",
            "claim",
            """            lock_acquire(world.wheel_lock)
            get.claim_offset = slot_last(world.wheel, slot)
            publish(get, "claimed_slot", slot + 1)
            lock_release(world.wheel_lock)
""",
            """            publish(get, "claimed_slot", slot + 1)
            lock_acquire(world.wheel_lock)
            get.claim_offset = slot_last(world.wheel, slot)
            lock_release(world.wheel_lock)
""",
        )
    ],
    "set is read before fire": [
        (
            "services.dequeue_put",
            "_append_taken",
            "    appended = append_staged(",
            """    lock_release(world.fire_lock)
    lock_acquire(world.fire_lock)
    appended = append_staged(""",
        )
    ],
    "settles after fire": [
        (
            "services.dequeue_put",
            "_append_taken",
            "    done = _settle(",
            """    lock_release(world.fire_lock)
    lock_acquire(world.fire_lock)
    done = _settle(""",
        )
    ],
    "levels without fire": [
        (
            "services.deliver_levels",
            "_deliver",
            "    appended = append_staged(",
            """    lock_release(world.fire_lock)
    lock_acquire(world.fire_lock)
    appended = append_staged(""",
        )
    ],
    "a level's clock is read before its end": [
        (
            "services.deliver_levels",
            "_deliver_any",
            "        done = _deliver(",
            """        end = load_acquire(world.queues.next_index, levels.row[level])
        done = _deliver(""",
        )
    ],
    "what found no room is forgotten": [
        (
            "services.steps",
            "_near_event_ms",
            "            ms = emptied_ms",
            "            ms = max(emptied_ms, now_ms)",
        )
    ],
    "frontier late": [
        (
            "services.dequeue_put",
            "_settle",
            """    world.dequeue_put.frontier_ms = frontier_ms
    store_release(world.ring_words, DEQUEUE_RING + RING_HEAD, head + done)
""",
            """    store_release(world.ring_words, DEQUEUE_RING + RING_HEAD, head + done)
    lock_release(world.fire_lock)
    lock_acquire(world.fire_lock)
    world.dequeue_put.frontier_ms = frontier_ms
""",
        )
    ],
    "deletes at once": [
        (
            "services.dequeue_get",
            "_hand_on_deletes",
            "not _is_emptied(world, slot, aside, now_ms)",
            "slot >= get.claimed_slot",
        )
    ],
    "R passes what was put aside": [
        (
            "services.dequeue_put",
            "_pass",
            "slot, waits = base_slot(world, aside), is_aside(world)",
            "slot, waits = base_slot(world, aside), False",
        )
    ],
}


def _module(name: str) -> types.ModuleType:
    return importlib.import_module(name if name.startswith("timerstore") else f"timerstore.{name}")


@contextlib.contextmanager
def wrong(name: str) -> Iterator[None]:
    """Have the kernels depart from the protocol in this way."""
    before: list[tuple[types.ModuleType, str, Any]] = []
    try:
        for where, function, right, other in WRONG[name]:
            module = _module(where)
            original = getattr(module, function)
            text = inspect.getsource(original)
            assert text.count(right) == 1, f"{name}: the text of {function} has changed"
            others = dict(vars(module))
            flags = __future__.annotations.compiler_flag
            code = compile(text.replace(right, other), f"<{name}>", "exec", flags)
            exec(code, vars(module))
            made = getattr(module, function)
            setattr(module, function, others[function])
            for each in modules():
                if getattr(each, function, None) is original:
                    before.append((each, function, original))
                    setattr(each, function, made)
        yield
    finally:
        for module, function, original in before:
            setattr(module, function, original)
