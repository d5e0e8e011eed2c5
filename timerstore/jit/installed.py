"""Where this package is installed: a folder, or a zip archive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from zipimport import zipimporter

PACKAGE: Final = str(Path(os.path.abspath(__file__)).parents[1])
IN_ARCHIVE: Final = not os.path.isdir(PACKAGE)
"""Whether the package was imported from a zip archive."""

_LOADER: Any = __spec__.loader
# A Spark worker names the archive by a relative path.
_FOLDER: Final = os.getcwd() if IN_ARCHIVE else ""
_READER: Any = zipimporter(os.path.abspath(_LOADER.archive)) if IN_ARCHIVE else _LOADER


def content_of(path: str) -> bytes:
    """Return the content of a file, also of one in the archive that the package is in."""
    if IN_ARCHIVE:
        path = os.path.normpath(os.path.join(_FOLDER, path))
    data: bytes = _READER.get_data(path)
    return data
