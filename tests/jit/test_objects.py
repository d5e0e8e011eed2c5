"""Where CPython keeps the bytes of its objects, beside what it says itself."""

import ast
import ctypes
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from timerstore.jit import objects
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.numpylayout import TEXT_DATA_AT, layout_holds
from timerstore.jit.objects import (
    address_of,
    ascii_at,
    bytes_at,
    new_ascii_at,
    object_at,
    read_objects,
)


@given(data=st.binary(min_size=1))
def test_an_address_leads_to_the_bytes(data: bytes) -> None:
    assert ctypes.string_at(address_of(data), len(data)) == data


@pytest.mark.skipif(INTERPRETED, reason="Arrow converts instead")
@given(values=st.lists(st.binary()))
def test_addresses_and_lengths_of_many(values: list[bytes]) -> None:
    kept = tuple(values)
    objects._read_objects.load()  # type: ignore[attr-defined]
    read = read_objects(kept)
    assert read is not None
    address, length = (each.tolist() for each in read)
    found = [ctypes.string_at(a, n) for a, n in zip(address, length, strict=True)]
    assert found == values
    assert read_objects((*kept, bytearray(b"x"))) is None
    assert read_objects((*kept, "x")) is None


@pytest.mark.skipif(INTERPRETED, reason="Arrow converts instead")
@given(values=st.lists(st.text(st.characters(max_codepoint=127)) | st.text()))
def test_texts_are_read_if_all_are_ascii(values: list[str]) -> None:
    kept = tuple(values)
    objects._read_objects.load()  # type: ignore[attr-defined]
    read = read_objects(kept, str)
    assert (read is not None) == all(map(str.isascii, values))
    if read is not None:
        address, length = (each.tolist() for each in read)
        found = [ctypes.string_at(a, n).decode() for a, n in zip(address, length, strict=True)]
        assert found == values
    assert read_objects((*kept, b"x"), str) is None
    assert read_objects((*kept, type("Text", (str,), {})("x")), str) is None


def test_the_layout_is_found_whatever_memory_is_free() -> None:
    """What is looked at is kept: a tuple that has gone may say anything."""
    kept = [(number,) for number in range(5_000)]  # no tuple waits to be used again
    assert all(layout_holds() for _ in kept[:5])


@kernel
def _copy_text(text: Any, kind: Any, data_at: Any, count: Any, into: Any) -> Any:
    found = ascii_at(text, kind, data_at, count)
    for i in range(len(found)):
        into[i] = found[i]
    return len(found)


@kernel
def _copy_data(data: Any, kind: Any, into: Any) -> Any:
    found = bytes_at(data, kind)
    for i in range(len(found)):
        into[i] = found[i]
    return len(found)


@kernel
def _write_text(text: Any, data_at: Any, count: Any) -> Any:
    digits = new_ascii_at(text, data_at, count)
    for i in range(count):
        digits[i] = 65 + i
    return count


OBJECTS: Any = st.one_of(
    st.text(st.characters(max_codepoint=127), max_size=9),
    st.text(max_size=9),
    st.binary(max_size=9),
    *(st.none(), st.integers(), st.floats(), st.binary().map(bytearray)),
    st.text(max_size=9).map(type("Text", (str,), {})),
)


@given(given=OBJECTS, count=st.integers(0, 9))
def test_a_kernel_is_given_any_object(given: Any, count: int) -> None:
    """It finds characters in nothing but such a text, and bytes in nothing but bytes."""
    into = np.zeros(16, np.uint8)
    is_such = type(given) is str and given.isascii() and len(given) == count
    found = _copy_text(object_at(given), object_at(str), TEXT_DATA_AT, count, into)
    assert into[:found].tobytes() == (given.encode() if is_such else b"")
    found = _copy_data(object_at(given), object_at(bytes), into)
    assert into[:found].tobytes() == (given if type(given) is bytes else b"")


@pytest.mark.skipif(INTERPRETED, reason="no text is written there")
@given(count=st.integers(2, 26))
def test_a_new_text_is_written(count: int) -> None:
    half = "0" * (count // 2)
    text = half + "0" * (count - len(half))
    _write_text(object_at(text), TEXT_DATA_AT, count)
    assert text == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count] and half == "0" * len(half)
    assert {text: 1} == {"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count]: 1}


SAID_BY_PYTHON = re.compile(r"\b(ctypes|sys|sysconfig|struct\.calcsize|__\w+size__)\b")
"""What may say something else in the Python that calls a kernel than in that which compiled it."""


def _constants(function: Any) -> Iterator[tuple[str, str]]:
    """Yield module and name of each number that a kernel, or a helper of it, names."""
    seen: set[FunctionType] = set()
    waiting = [function]
    while waiting:
        value = waiting.pop()
        python = getattr(value, "py_func", value)
        if not isinstance(python, FunctionType) or python in seen:
            continue
        seen.add(python)
        for name in python.__code__.co_names:
            value = python.__globals__.get(name)
            if isinstance(value, int | float):
                yield python.__module__, name
            elif not isinstance(value, ModuleType):
                waiting.append(value)


def _told_by(module: str, name: str) -> str:
    """Return the text by which a constant is computed, with those of the names in it."""
    for each in ast.parse(inspect.getsource(import_module(module))).body:
        if isinstance(each, ast.ImportFrom) and each.module is not None:
            found = {alias.asname or alias.name: alias.name for alias in each.names}
            if name in found and each.module.startswith("timerstore"):
                return _told_by(each.module, found[name])
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        names = {
            part.id for at in targets if at for part in ast.walk(at) if isinstance(part, ast.Name)
        }
        if name in names and (value := getattr(each, "value", None)) is not None:
            used = {part.id for part in ast.walk(value) if isinstance(part, ast.Name)} - {name}
            return " ".join([ast.unparse(value), *(_told_by(module, other) for other in used)])
    return ""


@pytest.mark.prove
def test_no_kernel_keeps_what_one_python_says_of_itself() -> None:
    """A wheel's kernels are called by other Pythons than the one that compiled them."""
    if INTERPRETED:
        return
    from timerstore.jit.packing import all_kernels

    kept = {each for kernel in all_kernels() for each in _constants(kernel.py_func)}
    assert ("timerstore.jit.objects", "TEXT_STATE_AT") in kept and len(kept) > 300
    assert SAID_BY_PYTHON.search(_told_by("timerstore.jit.objects", "TEXT_DATA_AT"))
    assert [each for each in sorted(kept) if SAID_BY_PYTHON.search(_told_by(*each))] == []
