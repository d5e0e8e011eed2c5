"""The page's commands, typed in an empty folder; what RocketMQ's scripts start is Maven's."""

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import timerstore
import timerstore.rocketmq
from tests.cli.shell import SMALL, finish, process
from tests.interop.brokers import Brokers, classpath, free_port
from tests.interop.test_common_calls import now_ms
from tests.markdown import ROOT, split_fences

pytestmark = [
    pytest.mark.slow,
    pytest.mark.prove,
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
]

PAGE = ROOT / "docs" / "howto" / "moving-to-rocketmq.md"
NAMESPACE = "org.apache.rocketmq"
SCRIPTS = {
    "mqnamesrv": "namesrv.NamesrvStartup",
    "mqbroker": "broker.BrokerStartup",
    "mqproxy": "proxy.ProxyStartup",
    "mqadmin": "tools.command.MQAdminStartup",
}
"""What RocketMQ's scripts start: Maven brings the programs without them."""
PROGRAM = """
import timerstore.rocketmq
with timerstore.rocketmq.connect("localhost:8081") as cluster:
    for d in cluster.consume("billing", group="mailer", timeout=120):
        print(d.body, flush=True)
        d.ack()
"""
GROUP, TOPIC, NEW_TOPIC = "mailer", "billing", "new"
SAID_S = 90
CONSUMED_S = 150


class Typed:
    """What the page has, with ports that are free here."""

    def __init__(self, folder: Path) -> None:
        blocks = split_fences(PAGE.read_text())[1]
        code = "".join(each.code for each in blocks if each.info.startswith("console"))
        self.lines = re.findall(r"^\$ (.*)$", code, re.M)
        self.folder, self.names = folder, f"localhost:{free_port()}"
        (folder / "home").mkdir()
        (folder / "said").touch()

    def line(self, part: str) -> str:
        """Return the one line that has a word; the page's places are those of this test."""
        (found,) = (each for each in self.lines if part in each)
        path = self.folder.parent / "timers"
        return found.replace("localhost:9876", self.names).replace(
            "/var/lib/rocketmq/timers", str(path)
        )

    def java(self, line: str, *more: str) -> str:
        """Return what the script of a line starts, and nothing else in the shell."""
        script = re.match(r"sh bin/(\w+)", line)
        assert script, line
        java = f"exec java -Duser.home={self.folder / 'home'} -cp '{classpath()}'"
        return f"{java} {NAMESPACE}.{SCRIPTS[script[1]]} {line[script.end() :]} {' '.join(more)}"

    def shell(self, line: str) -> "subprocess.Popen[bytes]":
        """Type a line in a terminal of its own."""
        with open(self.folder / "said", "ab") as said:
            command = ["sh", "-c", f"export ROCKETMQ_HOME=$PWD; {line}"]
            return subprocess.Popen(command, cwd=self.folder, stdout=said, stderr=said)

    def administer(self, line: str) -> None:
        """Type a line of `mqadmin`, which says whether it succeeded, and always ends with 0."""
        before = len(self.said())
        child = self.shell(self.java(line))
        assert child.wait(240) == 0 and "success" in self.said()[before:], (line, self.said())

    def consumed(self, port: int, count: int) -> Counter[str]:
        """Run the page's program until it has printed so many bodies; return them."""
        program = PROGRAM.replace("localhost:8081", f"localhost:{port}")
        command = [sys.executable, "-P", "-c", program]
        child = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        watchdog, found = threading.Timer(CONSUMED_S, child.kill), Counter[str]()
        watchdog.start()
        assert child.stdout is not None
        with child, child.stdout as lines:
            for line in lines:
                found[line.strip()] += line.startswith("b'")
                if found.total() == count:
                    break
            child.kill()
        watchdog.cancel()
        return +found

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    @contextmanager
    def running(self, line: str) -> Iterator[None]:
        """Type a line that goes on, and wait until it says that it has started."""
        before = self.said().count("success")
        child, stop = self.shell(line), time.monotonic() + SAID_S
        try:
            while self.said().count("success") == before:
                assert child.poll() is None and time.monotonic() < stop, (line, self.said())
                time.sleep(0.1)
            yield
        finally:
            child.kill()
            child.wait()


@pytest.mark.timeout(600)
def test_typed_in_an_empty_folder(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "timers", tmp_path / "rocketmq"
    folder.mkdir()
    typed = Typed(folder)
    with timerstore.open(path, config=SMALL) as store:
        due_ms = now_ms() + 30_000
        wanted = [b"%d" % i for i in range(300)]
        for i, body in enumerate(wanted):
            store.put(body, topic=TOPIC, at_ms=due_ms + 10 * i, key=f"k{i}")
        wrong = store.put(b"wrong", topic=TOPIC, at_ms=due_ms + 600_000)
    assert finish(process("handover", path))[0] == 0
    with open(path / "config" / "broker.conf", "a") as conf:
        conf.write(f"listenPort = {free_port()}\nhaListenPort = {free_port()}\n")
    port = free_port()
    settings = {"rocketMQClusterName": "DefaultCluster", "grpcServerPort": port}
    proxy = folder / "conf" / "rmq-proxy.json"
    proxy.parent.mkdir()
    proxy.write_text(json.dumps(settings | {"remotingListenPort": free_port()}))
    (folder / "names.conf").write_text(f"listenPort = {typed.names.rpartition(':')[2]}\n")
    with ExitStack() as stack:
        stack.enter_context(typed.running(typed.java(typed.line("mqnamesrv"), "-c names.conf")))
        stack.enter_context(typed.running(typed.java(typed.line("mqbroker"))))
        stack.enter_context(typed.running(typed.java(typed.line("mqproxy"))))
        for part in ("updateBrokerConfig", "updateTopic"):
            typed.administer(typed.line(part).replace(TOPIC, NEW_TOPIC))
        monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes
        connected = timerstore.rocketmq.connect(f"localhost:{port}", invisible=10)
        cluster = stack.enter_context(connected)
        assert cluster.cancel(wrong, topic=TOPIC)
        got = typed.consumed(port, len(wanted))
        assert got == dict.fromkeys(map(repr, wanted), 1)
        assert cluster.pull(TOPIC, group=GROUP, timeout=6).ids.to_pylist() == []
        is_shown(cluster, NEW_TOPIC)


def is_shown(cluster: timerstore.rocketmq.Cluster, topic: str) -> None:
    """Wait until a proxy shows a topic that is new."""
    stop = time.monotonic() + 60
    while True:
        try:
            assert cluster.put(b"x", topic=topic, delay=1)
        except timerstore.ClusterError:
            assert time.monotonic() < stop
            time.sleep(1)
        else:
            return
