"""A proxy that speaks TLS to users whose names it knows."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.cli.shell import SMALL, finish, process
from tests.interop.brokers import Brokers
from tests.interop.conftest import ROOMY

pytestmark = [pytest.mark.slow, pytest.mark.prove]

PROGRAM = """
import sys
import timerstore.rocketmq

address, access_key, secret_key, tls = sys.argv[1:]
given = {"access_key": access_key, "secret_key": secret_key, "tls": tls == "tls"}
try:
    with timerstore.rocketmq.connect(address, invisible=10, **given) as cluster:
        wrong = cluster.put(b"wrong", topic="t", delay=600)
        ids = cluster.put_many([b"x"] * 5, topic="t")
        assert cluster.cancel(wrong, topic="t")
        got = set()
        while len(got) < 5:
            for each in cluster.pull("t"):
                got.add(each.id)
                each.ack()
        assert got == set(ids)
        print("all came")
except timerstore.ClusterError as e:
    print(e)
"""

SETTINGS: dict[str, Any] = {
    "authenticationEnabled": "true",
    "innerClientAuthenticationCredentials": '{"accessKey":"admin","secretKey":"secret7"}',
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider."
    "DefaultAuthenticationProvider",
}
OF_BROKER: dict[str, Any] = {
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider."
    "LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"admin","password":"secret7"}',
}
OF_PROXY: dict[str, Any] = {
    "authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth."
    "ProxyAuthenticationMetadataProvider",
    "enableAclRpcHookForClusterMode": True,
    "tlsTestModeEnable": False,
}


def certificates(folder: Path) -> None:
    """Make that of an authority, and one of this machine that it signed."""
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca",
        "req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=localhost",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem "
        "-extfile names",
    ):
        subprocess.run(
            ["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=60
        )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl: nobody makes certificates")
@pytest.mark.timeout(300)
def test_it_is_let_in(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes
    certificates(tmp_path)
    files = {"tlsKeyPath": str(tmp_path / "key.pem"), "tlsCertPath": str(tmp_path / "cert.pem")}

    def says(*given: str) -> str:
        command = [sys.executable, "-c", PROGRAM, address, *given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    with rocketmq(tmp_path / "home") as brokers:
        brokers.ask("names")
        (tmp_path / "broker").mkdir()
        brokers.start(tmp_path / "broker", **ROOMY, **SETTINGS, **OF_BROKER)
        brokers.ask("topics", tmp_path / "broker", "t")
        address = brokers.proxy(**SETTINGS, **OF_PROXY, **files)
        assert says("admin", "secret7", "") == "all came\n"
        for wrong in (("admin", "another"), ("nobody", "secret7"), ("", "")):
            assert "refuses this access_key" in says(*wrong, "")
        assert "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in says("admin", "secret7", "tls")
        monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(tmp_path / "ca.pem"))
        assert says("admin", "secret7", "tls") == "all came\n"
        with timerstore.open(tmp_path / "timers", config=SMALL) as store:
            store.put(b"x", topic="t", delay=600)
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "admin")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "secret7")
        status, out, err = finish(process("move", tmp_path / "timers", address, "--tls"))
        assert (status, err) == (0, "") and "1 timers moved" in out
