"""Places for remote backups: a server of S3 on loopback, a file system whose calls can fail."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pyarrow.fs
from pyarrow.fs import FileSystemHandler, LocalFileSystem, PyFileSystem

from timerstore.copies.destination import Destination
from timerstore.errors import StoreAccessError

BUCKET: Final = "bucket"
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "whatever",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yield the environment that leads to a server of S3 on loopback, in which is a bucket.

    It is moto's, or the one whose address TEST_S3_URL says.
    """
    given = os.environ.get("TEST_S3_URL")
    with nullcontext(given) if given else _moto() as address:
        filesystem = pyarrow.fs.S3FileSystem(
            access_key=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            secret_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            region=ENVIRONMENT["AWS_REGION"],
            endpoint_override=address,
            allow_bucket_creation=True,
        )
        filesystem.create_dir(BUCKET)
        yield ENVIRONMENT | {"AWS_ENDPOINT_URL": address}


@contextmanager
def _moto() -> Iterator[str]:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


Watch = Callable[[str, str], None]
"""Takes what is done ("put", "get", "list", "remove", "rename") with which path, before it is.

One call at a time: who waits for another one in it waits for ever.
"""


class _Handler(FileSystemHandler):  # type: ignore[misc]
    """A local folder that is asked as an object store; whoever watches may raise."""

    def __init__(self, root: Path, watch: Watch) -> None:
        self._inner, self._root, self._watch = LocalFileSystem(), root, watch
        self._lock = threading.Lock()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def _place(self, path: str) -> str:
        return os.fspath(self._root / path.lstrip("/"))

    def _told(self, what: str, path: str) -> None:
        with self._lock:
            self._watch(what, path)

    def get_type_name(self) -> str:
        return "watched"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        raise NotImplementedError

    def get_file_info_selector(self, selector: Any) -> Any:
        self._told("list", selector.base_dir)
        base = self._place(selector.base_dir)
        wanted = pyarrow.fs.FileSelector(base, recursive=True, allow_not_found=True)
        return [
            pyarrow.fs.FileInfo(
                os.path.relpath(each.path, self._root), type=each.type, size=each.size
            )
            for each in self._inner.get_file_info(wanted)
        ]

    def create_dir(self, path: str, recursive: bool) -> None:
        self._inner.create_dir(self._place(path), recursive=recursive)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._told("put", path)
        return self._inner.open_output_stream(self._place(path), compression=None)

    def open_input_stream(self, path: str) -> Any:
        self._told("get", path)
        return self._inner.open_input_stream(self._place(path), compression=None)

    def move(self, source: str, target: str) -> None:
        self._told("rename", target)
        self._inner.move(self._place(source), self._place(target))

    def delete_file(self, path: str) -> None:
        self._told("remove", path)
        self._inner.delete_file(self._place(path))

    def _refuse(self, *given: Any) -> Any:
        raise NotImplementedError

    delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    copy_file = open_input_file = open_append_stream = _refuse


def watched_filesystem(root: Path, watch: Watch) -> PyFileSystem:
    """Return a file system over a folder, which tells what it is about to do."""
    root.mkdir(exist_ok=True)
    return PyFileSystem(_Handler(root, watch))


class CutDestination(Destination):
    """Another destination, of which calls fail."""

    def __init__(
        self,
        inner: Destination,
        left: int,
        *,
        done: bool = False,
        fails: Callable[[str], bool] = lambda call: False,
    ) -> None:
        """After `left` calls all fail, behind what they do if `done`; so do those of `fails`.

        It takes a call as "put NAME", "get NAME", "names FOLDER" or "remove NAME".
        """
        super().__init__(inner.fs, inner.root, inner.shown)
        self._left, self._done, self.fails = left, done, fails

    def _call(self, name: str, do: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left >= 0 and not self.fails(name):
            return do()
        if self._left == -1 and self._done:
            do()
        raise StoreAccessError(f"{self} could not be used: the test has cut it off.")

    def put(self, name: str, data: Any) -> None:
        self._call(f"put {name}", lambda: super(CutDestination, self).put(name, data))

    def get(self, name: str) -> bytes:
        found: bytes = self._call(f"get {name}", lambda: super(CutDestination, self).get(name))
        return found

    def names(self, folder: str) -> list[str]:
        found: list[str] = self._call(
            f"names {folder}", lambda: super(CutDestination, self).names(folder)
        )
        return found

    def remove(self, name: str) -> None:
        self._call(f"remove {name}", lambda: super(CutDestination, self).remove(name))
