"""A real browser shows the page, and runs nothing that strangers wrote. Needs Chromium."""

import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from tests.page.conftest import Shown
from timerstore import TimerStore

pytestmark = [pytest.mark.slow, pytest.mark.prove, pytest.mark.timeout(180)]

EVIL = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


def test_a_browser_shows_it_and_runs_nothing(
    store: TimerStore, show: Shown, tmp_path: Path
) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is missing: no browser shows the page")
    hour = timedelta(hours=1)
    id = store.put(EVIL.encode(), key=EVIL, tag=EVIL, delay=hour, properties={EVIL[:9]: EVIL})
    browser = show(write=True)
    for address in ("pending", f"timer?id={id}", ""):
        command = [chromium, "--headless", "--no-sandbox", f"--user-data-dir={tmp_path}/profile"]
        command += ["--virtual-time-budget=2000", "--dump-dom", browser.url + address]
        told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "· timers</title>" in told.stdout and "<title>run" not in told.stdout
        assert not address or "&lt;script&gt;" in told.stdout
