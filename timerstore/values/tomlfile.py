"""A TOML file that a person wrote, read whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from timerstore.errors import InvalidArgumentError
from timerstore.values.kinds import check_path

TOML_BYTES_MAX: Final = 1 << 20
"""More is some other file."""


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Return what a file says; `what` it should hold is named if it is too long.

    Raises InvalidArgumentError.
    """
    import tomllib  # few programs have a file of settings

    name = str(check_path(path))
    try:
        with Path(name).open("rb") as file:
            data = file.read(TOML_BYTES_MAX + 1)
        if len(data) > TOML_BYTES_MAX:
            raise InvalidArgumentError(f"{name} is larger than {what} can be. Pass another file.")
        return tomllib.loads(data.decode())
    except OSError as e:
        raise InvalidArgumentError(
            f"{name} cannot be read ({e.strerror}). Pass the path of a TOML file."
        ) from e
    except InvalidArgumentError:
        raise
    except (ValueError, RecursionError) as e:  # also a number of more digits than Python takes
        raise InvalidArgumentError(f"{name} is no TOML: {e}. Correct it.") from e
