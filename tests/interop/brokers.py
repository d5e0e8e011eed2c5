"""RocketMQ in a process of its own, asked by lines: brokers that open folders of stores.

`Brokers.java` starts each as RocketMQ's own program does, from a file of settings. Maven fetches
RocketMQ once, into a folder of the user's cache: 5.3.3, or the version that ROCKETMQ_VERSION names.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from timerstore.store.handover import CONFIG_FILE

HERE: Final = Path(__file__).parent
NO_TOOLS: Final = "no JDK or no Maven: RocketMQ itself opens no store"
NO_JARS: Final = "Maven cannot fetch RocketMQ: RocketMQ itself opens no store"
VERSION: Final = os.environ.get("ROCKETMQ_VERSION", "5.3.3")
JVM_OPTIONS: Final = ("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",)
"""From 5.4 on RocketMQ frees maps with what Java hides."""
ANSWER_S: Final = 60
"""Whatever a broker is asked it answers sooner, or its process is ended."""


class NoRocketMQError(Exception):
    """RocketMQ cannot run here; says why."""


def classpath() -> str:
    """Return what Java needs to run `Brokers`; fetched and compiled once for each version of it."""
    if not all(map(shutil.which, ("java", "javac", "mvn"))):
        raise NoRocketMQError(NO_TOOLS)
    pom, program = (HERE / "pom.xml").read_bytes(), (HERE / "Brokers.java").read_bytes()
    made_of = pom + VERSION.encode(), program + VERSION.encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timerstore-tests"
    jars, classes = (
        cache / f"{name}-{zlib.crc32(content):08x}"
        for name, content in zip(("rocketmq", "classes"), made_of, strict=True)
    )
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml")]
            command += ["dependency:copy-dependencies", f"-Drocketmq.version={VERSION}"]
            _make(jars, lambda folder: [*command, f"-DoutputDirectory={folder}"], NO_JARS)
        if not classes.exists():
            command = ["javac", "-cp", f"{jars}/*", str(HERE / "Brokers.java")]
            _make(classes, lambda folder: [*command, "-d", str(folder)], "")
    return f"{classes}:{jars}/*"


def _make(folder: Path, command: Callable[[Path], list[str]], why: str) -> None:
    """Have a command fill a folder, which is there once it is complete."""
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        done = subprocess.run(
            command(made), capture_output=True, text=True, timeout=240, check=False
        )
    except subprocess.TimeoutExpired as error:
        shutil.rmtree(made)
        raise NoRocketMQError(why) from error
    if done.returncode:
        shutil.rmtree(made)
        if why:
            raise NoRocketMQError(why)
        raise RuntimeError(done.stdout + done.stderr)
    made.rename(folder)


class Brokers:
    """Brokers in one process. Leaving the block kills it, with all that still run."""

    def __init__(
        self, home: Path, options: Sequence[str] = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    ) -> None:
        """Start the process; `home`: an empty folder, for settings and what RocketMQ logs.

        `options` are those of the JVM.
        """
        home.mkdir(parents=True)
        self.home = home
        command = ["java", *JVM_OPTIONS, *options, f"-Duser.home={home}"]
        command += ["-cp", classpath(), "Brokers"]
        variables = os.environ | {"ROCKETMQ_HOME": str(home), "LC_ALL": "C.UTF-8"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with open(home / "stderr", "wb") as said:
            self.process = subprocess.Popen(command, **pipes, stderr=said, env=variables, text=True)

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL, and its brokers with it."""
        self.process.kill()
        self.process.communicate()

    def ask(self, *words: object) -> list[str]:
        """Send a command; return the words of its answer. Raises AssertionError where it failed."""
        assert self.process.stdin and self.process.stdout
        watchdog = threading.Timer(ANSWER_S, self.process.kill)
        watchdog.start()
        try:
            self.process.stdin.write("\t".join(map(str, words)) + "\n")
            self.process.stdin.flush()
            status, *answer = self.process.stdout.readline().rstrip("\n").split("\t")
        finally:
            watchdog.cancel()  # it would keep this process for as long
        said = answer or (self.home / "stderr").read_text()[-4000:]
        none = f"nothing within {ANSWER_S} s, or the process has ended"
        assert status == "ok", f"{words}: {said or none}"
        return answer

    def start(self, path: Path, **settings: object) -> tuple[int, int]:
        """Start a broker on a store; return the commit log's start and end, as it found them.

        It is set as the handover of the store says, where there was one, and by `settings`.
        """
        file = self.home / f"{path.name}.conf"
        handed = path / CONFIG_FILE
        lines = handed.read_text("latin-1").splitlines() if handed.exists() else []
        ports = {"listenPort": 0, "haListenPort": free_port()}
        if not lines:
            ports["brokerIP1"] = "127.0.0.1"  # a handover has written it
        # Of two of its threads one never rests for so long, one reads the whole wheel so often.
        ports |= {"transactionMetricFlushInterval": 200, "timerFlushIntervalMs": 3_000}
        ports["waitTimeMillsInSendQueue"] = 10_000  # 200 are too few on a busy machine
        given = {"storePathRootDir": path, "storePathCommitLog": path / "commitlog"}
        for name, value in (given | ports | {"bindAddress": "127.0.0.1"} | settings).items():
            lines.append(f"{name} = {value}")
        file.write_text("\n".join(lines), "latin-1")
        start, end = self.ask("start", path, file)
        return int(start), int(end)

    def proxy(self, address: str = "", **more: object) -> str:
        """Start a proxy for clients that speak gRPC, beside a name server; return its address.

        `address`: where one listened that was killed. `more`: more of its settings.
        """
        port = int(address.rpartition(":")[2] or free_port())
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER",
            "grpcServerPort": port,
            "remotingListenPort": free_port(),
            "localServeAddr": "127.0.0.1",
            "grpcClientConsumerMinLongPollingTimeoutMillis": 1_000,
            "topicRouteServiceCacheRefreshSeconds": 1,  # a dead letter's topic is new
            "maxDelayTimeMills": 400 * 86_400_000,
            **more,
        }
        file = self.home / "proxy.json"
        file.write_text(json.dumps(settings))
        self.ask("proxy", file)
        return f"127.0.0.1:{port}"

    def stop(self, *paths: Path) -> None:
        """Stop the brokers of stores as their own program does."""
        self.ask("stop", *paths)


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
