"""A name server, a broker, a proxy, of which one is in a process of its own: that one can go."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from tests.interop.brokers import Brokers, free_port
from tests.interop.conftest import ROOMY


class Parts:
    """All of a cluster; `victim`, "broker" or "proxy", is what is taken away."""

    def __init__(
        self, base: Path, stack: ExitStack, victim: str, path: Path, **settings: object
    ) -> None:
        """Start all. `path`: the broker's folder; `settings`: its own."""
        self.base, self.stack, self.victim, self.path = base, stack, victim, path
        # There its clients find it again at once; at another port only after half a minute.
        self.settings = {"listenPort": free_port()} | settings
        self.taken, self.other = (self._made() for _ in range(2))
        (self.names,) = self.other.ask("names")
        self.taken.ask("know", self.names)
        self.broker = self.other if victim == "proxy" else self.taken
        self.broker.start(path, **self.settings)
        self.other.ask("known", ROOMY["brokerName"])
        self.address = (self.taken if victim == "proxy" else self.other).proxy()

    def _made(self) -> Brokers:
        home = self.base / f"home-{len(list(self.base.glob('home-*')))}"
        return self.stack.enter_context(Brokers(home))

    def freeze(self, length_s: float) -> None:
        """Let it do nothing for a while."""
        os.kill(self.taken.process.pid, signal.SIGSTOP)
        time.sleep(length_s)
        os.kill(self.taken.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.taken.kill()

    def bring_back(self) -> None:
        """Start it anew, after a kill."""
        self.taken = self._made()
        self.taken.ask("know", self.names)
        if self.victim == "proxy":
            self.taken.proxy(self.address)
        else:
            self.broker = self.taken
            self.broker.start(self.path, **self.settings)
