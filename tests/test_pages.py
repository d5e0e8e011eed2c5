"""The pages that a reader follows do what they say."""

from pathlib import Path

import pytest

from tests.markdown import ROOT
from tests.page_player import PageError, is_said, play, steps
from tests.rigs.waiting import wait_until

PAGES = sorted(
    [
        *(ROOT / "docs" / f"{name}.md" for name in ("tutorial", "faq")),
        *(ROOT / "docs" / f"{name}.md" for name in ("asyncio", "processes", "recurring")),
        *ROOT.glob("docs/howto/*.md"),
    ]
)


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_a_page_does_what_it_says(path: Path, tmp_path: Path) -> None:
    play(path, tmp_path)


def _page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text.replace("'''", "```"))
    (folder / "here").mkdir()
    return path


def test_one_shell_for_all_of_a_page(tmp_path: Path) -> None:
    page = _page(
        tmp_path,
        """
'''python title="hello.py"
print("hello", 3.14)
'''
'''console
$ name=$(python hello.py)
$ sleep 60 &
$ echo "$name"
hello …
$ cat <<END
> a
> b
> END
…
b
$ kill -9 %1; wait
$ true
'''
'''console status="3"
$ (exit 3)
'''
'''python
print(open("hello.py").read())
'''
'''text title="output"
print("hello", …)
'''
'''console run="no"
$ exit 1
'''
""",
    )
    play(page, tmp_path / "here")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("'''console\n$ echo a\nb\n'''\n", "page.md:3: echo a\na\n\nis not what"),
        ("'''console\n$ false\n'''\n", "ended with status 1"),
        ("'''console status=\"1\"\n$ true\n'''\n", "ended with status 0"),
        ("'''console\n$ exit 0\n'''\n", "the shell ended in: exit 0"),
        ("'''python\n1 / 0\n'''\n", 'line-3.py", line 3'),
        ("'''text title=\"output\"\na\n'''\n", "nothing before it runs"),
        ("'''python\n'''\n'''text title=\"output\"\na\n'''\n", "is not what"),
        ("'''python no-run\n'''\n", "a fence is a language"),
        ("'''python rum=\"no\"\n'''\n", "a fence has no rum"),
    ],
)
def test_a_page_that_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    page = _page(tmp_path, "\n" + text)
    with pytest.raises(PageError) as e:
        play(page, tmp_path / "here")
    assert why in str(e.value)


def test_what_prints_for_ever_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.page_player.TIMEOUT_S", 0.3)
    page = _page(tmp_path, "'''console\n$ while true; do echo on; done\n'''\n")
    with pytest.raises(PageError, match="it still ran: while true"):
        play(page, tmp_path / "here")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_still_runs_ends_with_the_page(tmp_path: Path) -> None:
    page = _page(tmp_path, "'''console\n$ sleep 60 & echo $! >pid\n$ sleep 61 &\n'''\n")
    play(page, tmp_path / "here")
    pid = int((tmp_path / "here/pid").read_text())
    wait_until(lambda: not _runs(pid))  # it was killed; that takes a moment


@pytest.mark.parametrize(
    ("said", "wanted", "fits"),
    [
        ("a\nb\n", "a\nb", True),
        ("a  \nb", "a\nb\n", True),
        ("a 1 b", "a … b", True),
        ("a\n1\n2\nb\n", "a\n…\nb\n", True),
        ("a\nb\n", "a\n…\nb\n", True),
        ("a\nb\n", "a", False),
        ("a\nb\n", "b", False),
        ("ab", "a.", False),
        ("a\nb", "a…b", False),
        ("", "…", True),
        ("a\n\nb", "a\nb", False),
        ("a\n\nb", "a\n\nb", True),
    ],
)
def test_dots_stand_for_text(said: str, wanted: str, fits: bool) -> None:
    assert is_said(said, wanted) is fits


def test_the_pages_that_are_played_run_something() -> None:
    for path in PAGES:
        assert path.name == "faq.md" or list(steps(path.read_text())), path
