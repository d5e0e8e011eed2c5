"""The site of the documentation: it builds without a warning, it is whole without a network."""

import json
import re
from pathlib import Path

import pytest

from tests.markdown import ROOT, split_fences
from tests.rigs.program import python
from timerstore.pipeline import DISTRIBUTION_RULES, TABLES
from timerstore.tables import TABLES as STORE_TABLES
from timerstore.validation import RULES

pytest.importorskip("mkdocs", reason="the extra docs is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `./run docs` builds it: a link that leads nowhere ends the build."""
    folder = tmp_path_factory.mktemp("site")
    build = ["-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    python(*build, cwd=ROOT, timeout_s=120, NO_MKDOCS_2_WARNING="1")
    return folder


def test_it_builds_with_every_page(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    notebooks = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.ipynb")]
    assert len(notebooks) > 3
    for page in pages + notebooks:
        assert (site / page.with_suffix(".html")).exists(), page


def test_what_the_code_declares_is_filled_in(site: Path) -> None:
    texts = {name: (site / f"{name}.html").read_text() for name in ("validate", "pipeline")}
    texts["cli"] = (site / "reference" / "cli.html").read_text()
    assert all(f"<code>{rule.name}</code>" in texts["validate"] for rule in RULES)
    assert all(f"<code>{rule.name}</code>" in texts["pipeline"] for rule in DISTRIBUTION_RULES)
    assert all(f'id="{name}"' in texts["pipeline"] for name in TABLES)
    assert 'id="reschedule"' in texts["cli"] and "--help" in texts["cli"]
    spark = (site / "spark.html").read_text()
    assert all(
        f"<code>{column.name}</code>" in spark
        for table in STORE_TABLES.values()
        for column in table.columns
    )
    for path in site.rglob("*.html"):
        assert "<!-- made:" not in path.read_text(), path


def test_search_leads_to_an_answer(site: Path) -> None:
    """What people look for is in a heading, which search ranks first; builders' pages are not."""
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    asked = {
        "time zone": "faq.html#what-about-time-zones",
        "rate limit": "faq.html#can-i-limit-the-rate",
        "retry": "faq.html#what-happens-when-a-handler-fails",
        "priority": "faq.html#can-a-timer-have-a-priority",
        "delete all": "faq.html#how-do-i-delete-all",
        "every weekday": "faq.html#how-do-i-send-something-every-weekday",
        "arm64": "faq.html#does-it-run-on-windows",
        "memory": "faq.html#how-much-memory",
        "lambda": "faq.html#can-i-schedule-a-function",
    }
    for words, answer in asked.items():
        headed = [
            each["location"]
            for each in index
            if all(word in each["title"].lower() for word in words.split())
        ]
        assert any(each.startswith(answer) for each in headed), (words, headed)
    builders = ("design.html", "format.html", "recovery.html", "testing.html", "dependencies.html")
    assert not [each for each in index if each["location"].startswith(builders)]


def test_fences_are_code(site: Path) -> None:
    """One with `title=` or `run=` in its first line is highlighted as any other."""
    for path in site.rglob("*.html"):
        prose = re.sub(r"(?s)<code.*?</code>", "", path.read_text())
        assert "```" not in prose, path
    text = (site / "consumer.html").read_text()
    assert "```" not in text and 'run="no"' not in text
    assert text.count('<div class="language-python highlight">') == sum(
        block.info.startswith("python")
        for block in split_fences((ROOT / "docs" / "consumer.md").read_text())[1]
    )


@pytest.mark.prove
def test_notebooks_have_their_pictures(site: Path) -> None:
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        text = (site / "notebooks" / f"{path.stem}.html").read_text()
        assert text.count("<img ") == path.read_text().count('"image/png"')
        assert "<img " in text or "<table" in text


_FETCHED = re.compile(
    r"""<(?!a\b)\w+[^>]*?\s(?:src|srcset|href|data|action)=["']?(?:https?:)?//[^\s"'>]*"""
)
"""An address of elsewhere that a browser asks by itself: in any element but a link."""


def test_nothing_of_elsewhere_is_fetched(site: Path) -> None:
    assert _FETCHED.search('<link rel="stylesheet" href="https://fonts.example/a.css">')
    assert not _FETCHED.search('<a class="x" href="https://elsewhere.example">')
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert _FETCHED.findall(text) == [], path
        assert 'class="mermaid"' not in text, path  # the theme would fetch what draws it
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()), path


def test_no_picture_is_a_white_box_in_the_dark(site: Path) -> None:
    """Each is turned over there: by the page's own switch, which the system's need not follow."""
    css = (site / "css" / "site.css").read_text()
    assert 'css/site.css"' in (site / "benchmarks.html").read_text()
    turned = r'\[data-md-color-scheme="slate"\] .md-content img \{([^}]*)'
    (rule,) = re.findall(turned, css)
    assert "invert(1)" in rule and "screen" in rule
    for page in site.rglob("*.html"):
        assert "<picture" not in page.read_text(), page


def test_the_front_page_begins_as_the_readme() -> None:
    first, front = (
        split_fences((ROOT / name).read_text())[1] for name in ("README.md", "docs/index.md")
    )
    programs = [
        next(block.code for block in blocks if block.info == "python") for blocks in (first, front)
    ]
    assert programs[0] == programs[1]
