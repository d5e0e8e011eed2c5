"""Where objects of a backup lie: a folder in any file system that pyarrow has.

An object is written once, whole, and never changed. S3, Google's and Azure's stores show an object
once all of it is there; in any other file system it is written under another name, then renamed.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from timerstore.copies.report import BackupLock
from timerstore.core.directory import CHAINS_FOLDER, holds_objects, is_standby
from timerstore.errors import (
    InvalidArgumentError,
    StoreAccessError,
    StoreFullError,
    StoreLockedError,
)
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import held_names
from timerstore.values.kinds import ADDRESS, check_path, is_url

Place: TypeAlias = "str | os.PathLike[str] | Any"
"""A folder, an address such as s3://bucket/timers, or a pyarrow.fs.FileSystem."""

LOG_FOLDER: Final = "log"
POINTS_FOLDER: Final = "points"
_WHOLE_AT_ONCE: Final = frozenset(("s3", "gcs", "abfs"))
"""File systems that show a new object once all of it is there."""
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_REASON_CHARACTERS_MAX: Final = 300
_CONNECT_S: Final = 5.0
_REQUEST_S: Final = 10.0
"""Without a byte for so long a request has failed; it is made three times."""
_YES: Final = frozenset(("true", "1"))


class Destination:
    """A folder of objects. Names have `/` between their parts; any thread may use it.

    What the file system refuses is a StoreAccessError, or a StoreFullError; an object that is not
    there is a FileNotFoundError.
    """

    def __init__(self, filesystem: Any, root: str, shown: str, disk: Disk | None = None) -> None:
        """Take a pyarrow file system, a folder in it, what people are told of both.

        `disk`: writes, if that is a folder of this machine.
        """
        self.disk = Disk() if disk is None else disk
        self.fs, self.root, self.shown = filesystem, root.rstrip("/"), shown
        self.request_count = 0
        """Calls of the file system; each is one request or a few."""
        self.sent_bytes = 0
        inner, base = filesystem, self.root
        while inner.type_name == "subtree":
            base = f"{inner.base_path}/{base}"
            inner = inner.base_fs
        self.folder = Path(base) if inner.type_name == "local" else None
        """The folder, if it is one of this machine."""
        self._at_once = inner.type_name in _WHOLE_AT_ONCE

    def __str__(self) -> str:
        return self.shown

    @property
    def key(self) -> str:
        """Return what names it, however its address was spelled."""
        if self.folder is not None:
            return os.fspath(self.folder.resolve())
        return re.sub("(?<!:)/+", "/", self.shown).rstrip("/")

    def check_is_free(self) -> None:
        """Refuse a folder of this machine that holds something else than a backup."""
        if self.folder is None or not self.folder.exists():
            return
        if held_names(self.folder) - {CHAINS_FOLDER, LOG_FOLDER, POINTS_FOLDER}:
            raise InvalidArgumentError(
                f"{self} holds files that belong to no backup. Pass an empty folder, or the folder "
                "of a backup."
            )

    def put(self, name: str, data: Any) -> None:
        """Write an object; once this returns it is there, whole. O(bytes)."""
        self.request_count += 1
        self.sent_bytes += len(data)
        # Nobody else writes that file.
        temporary = f"{name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
        with self._telling():
            try:
                if self.folder is not None:
                    file = self.folder / name
                    self.disk.make_folder(file.parent)
                    self.disk.replace(file, data, self.folder / temporary)
                elif self._at_once:
                    self._write(self._path(name), data)
                else:
                    path = self._path(name)
                    self.fs.create_dir(path.rpartition("/")[0], recursive=True)
                    self._write(self._path(temporary), data)
                    self.fs.move(self._path(temporary), path)
            except BaseException:
                if not self._at_once:
                    with suppress(OSError):
                        self.fs.delete_file(self._path(temporary))
                raise

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one on this machine who writes, if it is a folder; make that.

        Raises StoreLockedError if another process writes there.
        """
        if self.folder is None:
            yield
            return
        with self._telling():
            self.disk.make_folder(self.folder)
            lock = BackupLock(self.folder)
        try:
            yield
        finally:
            lock.release()

    def remove_unfinished(self) -> None:
        """Remove what killed runs left in a folder; it is a backup's, and the caller holds it."""
        with self._telling():
            for name in (CHAINS_FOLDER, LOG_FOLDER, POINTS_FOLDER):
                for file in (self.folder / name).rglob("*.tmp") if self.folder else ():
                    self.disk.unlink(file)

    def _write(self, path: str, data: Any) -> None:
        stream = self.fs.open_output_stream(path, compression=None)
        stream.write(data)
        stream.close()  # not in a `with`: that would make an object of what was written so far

    def get(self, name: str) -> bytes:
        """Return an object. Raises FileNotFoundError.

        If its bytes break off, it is asked for once more: file systems repeat only what they ask.
        """
        path, is_again = self._path(name), False
        while True:
            self.request_count += 1
            try:
                with self._telling(), self.fs.open_input_stream(path, compression=None) as stream:
                    data: bytes = stream.read()
                    return data
            except StoreAccessError:
                if is_again:
                    raise
                is_again = True

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, in order, without the folder's own."""
        from pyarrow.fs import FileSelector, FileType

        self.request_count += 1
        base = self._path(folder)
        with self._telling():
            found = self.fs.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
        names = [each.path for each in found if each.type == FileType.File]
        at = base.lstrip("/") + "/"  # some file systems leave out the slash that a root begins with
        cut = [each[each.find(at) + len(at) :] for each in names if at in each]
        return sorted(each for each in cut if not each.endswith(".tmp"))

    def remove(self, name: str) -> None:
        """Remove an object; one that is gone already is no error."""
        self.request_count += 1
        try:
            with self._telling():
                self.fs.delete_file(self._path(name))
        except FileNotFoundError:
            pass

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn what the file system says into errors of ours."""
        from pyarrow import ArrowException

        try:
            yield
        except (FileNotFoundError, StoreAccessError, StoreFullError, StoreLockedError):
            raise
        except (OSError, ArrowException) as e:
            reason = " ".join(str(e).split())[:_REASON_CHARACTERS_MAX]
            if getattr(e, "errno", None) in _FULL:
                raise StoreFullError(f"{self} has no space left. Free some, then try again.") from e
            raise StoreAccessError(
                f"{self} could not be used: {reason}. Check its address, the network, and the "
                "credentials in the environment; then try again."
            ) from e


def find_place(place: Place) -> Path | Destination:
    """Return a folder in which a store, or a standby, may lie; or the destination of a backup.

    Raises InvalidArgumentError; StoreAccessError if a file system does not answer.
    """
    if not is_address(place):
        path = check_path(place)
        if is_standby(path) or not holds_objects(path):
            return path
    return find_destination(place)


def find_destination(place: Place) -> Destination:
    """Return the destination that an address, or a folder, is meant to be.

    Raises InvalidArgumentError, also if a standby lies there; StoreAccessError if a file system
    does not answer.
    """
    if _is_filesystem(place):
        return Destination(place, "", shown_place(place))
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else place
    found = ADDRESS.match(text) if isinstance(text, str) else None
    if found is None:
        return _local(check_path(place))
    scheme = found[1]
    if scheme == "file":
        return _of_file_address(text)
    shown = _shown(text)
    try:
        if scheme == "s3":
            filesystem, root = _s3(text)
        else:
            from pyarrow.fs import FileSystem

            filesystem, root = FileSystem.from_uri(text)
    except (ValueError, TypeError, NotImplementedError) as e:
        raise InvalidArgumentError(
            f"pyarrow cannot read the address {shown}: {e}. Correct the address."
        ) from e
    except OSError as e:
        raise StoreAccessError(f"{shown} could not be used: {e}. Check the address.") from e
    if not root.strip("/"):
        raise InvalidArgumentError(f"{shown} names no bucket. Pass one, with a folder in it.")
    return Destination(filesystem, root, shown)


def is_copy(place: Place) -> bool:
    """Tell whether a place is that of a backup or a standby, not of a store."""
    return is_address(place) or is_standby(Path(place)) or holds_objects(Path(place))


def is_address(place: object) -> bool:
    """Tell whether a place is named by an address, or is a file system.

    >>> is_address("s3://bucket/timers"), is_address("timers/")
    (True, False)
    """
    return _is_filesystem(place) or is_url(place)


def shown_place(place: Place) -> str:
    """Return a place as people are told of it, without secrets or options."""
    if _is_filesystem(place):
        return f"{getattr(place, 'type_name', 'a')} file system"
    return _shown(str(place)) if is_address(place) else os.fspath(place)


def _is_filesystem(place: object) -> bool:
    module = sys.modules.get("pyarrow.fs")  # who has one has imported it
    return module is not None and isinstance(place, module.FileSystem)


def _local(path: Path, shown: str | None = None) -> Destination:
    from pyarrow.fs import LocalFileSystem

    if is_standby(path):
        raise InvalidArgumentError(
            f"{path} is a standby, not a backup: nothing is restored from it or written into it. "
            f"Run `timerstore promote {path}` to make it the store, or pass the place that it "
            "follows to `restore`, or another folder to `backup`."
        )
    if any("\ud800" <= each <= "\udfff" for each in str(path)):
        raise InvalidArgumentError(
            f"{path!r} has a name that is no UTF-8, which Arrow's file systems do not take. Pass "
            "a folder whose name is UTF-8."
        )
    place = os.fspath(path.absolute())
    return Destination(LocalFileSystem(), place, place if shown is None else shown)


def _of_file_address(text: str) -> Destination:
    from pyarrow.fs import FileSystem

    try:
        _, root = FileSystem.from_uri(text)
    except (ValueError, OSError) as e:
        raise InvalidArgumentError(
            f"{text} is no valid file:// address: {e}. Correct the address."
        ) from e
    return _local(check_path(root), text)


def _shown(text: str) -> str:
    """Return an address as it may be seen by anybody; refuse one that tells a secret."""
    parts = urlsplit(text, allow_fragments=False)
    if parts.password is not None:
        raise InvalidArgumentError(
            f"The address {parts.scheme}://… contains a password, which others could read. Take "
            "it out, and put it into the environment or into the configuration file of that "
            "storage."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _s3(text: str) -> tuple[Any, str]:
    """Return the file system of an address of S3, with limits of time, and its path."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    parts = urlsplit(text, allow_fragments=False)  # "#" may be part of an object's name
    told: dict[str, Any] = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    for name in ("allow_bucket_creation", "anonymous", "force_virtual_addressing"):
        if name in told:
            told[name] = told[name].lower() in _YES
    environ = os.environ.get
    endpoint = environ("AWS_ENDPOINT_URL_S3") or environ("AWS_ENDPOINT_URL")
    if endpoint:
        told.setdefault("endpoint_override", endpoint)
    known = told.get("region") or environ("AWS_REGION") or environ("AWS_DEFAULT_REGION")
    if known:
        told["region"] = known
    elif "endpoint_override" not in told:
        with suppress(OSError):  # then the first request tells what is wrong
            told["region"] = resolve_s3_region(parts.netloc)
    if {".", ".."} & {*parts.path.split("/")}:
        raise ValueError('"." and ".." are no folders there')
    filesystem = S3FileSystem(
        **told,
        allow_delayed_open=True,
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=3),
    )
    return filesystem, parts.netloc + parts.path
