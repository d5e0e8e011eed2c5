"""Files that are wrong: one bit of them, as a disk may turn it over."""

from pathlib import Path


def flip_bit(file: Path, at: int | bytes, bit: int = 0) -> int:
    """Turn a bit of a file over; return which byte it is in. `at`: that byte, or what begins there.

    It is done in place, as a store may have the file mapped.
    """
    with file.open("r+b") as opened:
        place = opened.read().index(at) if isinstance(at, bytes) else at
        opened.seek(place)
        (byte,) = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ 1 << bit]))
    return place
