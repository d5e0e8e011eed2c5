"""Pages of the site that are no Markdown file in docs/, for MkDocs.

Notebooks become pages with their stored outputs. What a page links to elsewhere in the repository,
an example say, becomes a page too, so that a link works both here and where the repository is
browsed. An entry of the navigation with a * stands for the pages that it matches.
"""

from __future__ import annotations

import base64
import fnmatch
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
NAMED = {"README.md": "about.md"}
"""Pages that have another place on the site."""
FOUND_FIRST = {"reference/store.md", "tutorial.md"}
"""Pages that search shows before others that have the same words, asyncio's calls say."""
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".yaml": "yaml"}
_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_TITLE = re.compile(r' title="[^"]*"')
"""Of a fence, what is shown; all else behind the language is for tests."""
_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)(?P<title>[^)]*)\)")

_homes: dict[str, str] = {}
"""Of each page that is made here, the file in the repository which it shows."""


def place_of(path: str) -> str:
    """Where the site has a file of the repository, both as relative paths."""
    if path in NAMED:
        return NAMED[path]
    if path.startswith("docs/"):
        path = path.removeprefix("docs/")
        return path.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else path
    return path if path.endswith(".md") else path + ".md"


def map_links(text: str, change: Callable[[str], str | None]) -> str:
    """Put another target into each link to a file, but not in code; None leaves its text alone."""

    def one(match: re.Match[str]) -> str:
        target, hash_, anchor = unquote(match["target"]).partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        new = change(target)
        if new is None:
            return match["text"].strip("![]")
        return f"{match['text']}({new}{hash_}{anchor}{match['title']})"

    lines, fence = [], ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if match and (not fence or match[1].startswith(fence)):
            if not fence:
                line = (
                    match[0] + line[match.end() :].split(" ", 1)[0] + "".join(_TITLE.findall(line))
                )
            fence = "" if fence else match[1]
        elif not fence:
            parts = re.split(r"(?<!`)(`[^`]+`)(?!`)(?!\])", line)
            line = "".join(each if each[:1] == "`" else _LINK.sub(one, each) for each in parts)
        lines.append(line)
    return "\n".join(lines)


def resolved(home: str, target: str) -> str:
    """Find the file that a link leads to; both are paths in the repository."""
    return os.path.normpath(os.path.join(os.path.dirname(home), target))


def linked(home: str, text: str) -> list[str]:
    """List the files that a page links to."""
    found: list[str] = []

    def see(target: str) -> str:
        found.append(resolved(home, target))
        return target

    map_links(text, see)
    return found


def page_text(path: str) -> str:
    """Read a file of the repository as Markdown; a folder's README names what lies beside it."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        is_top = "/" not in path  # what stands there says itself what is beside it
        beside = [] if is_top else sorted((ROOT / path).parent.glob("*.py"))
        beside += [] if is_top else sorted((ROOT / path).parent.glob("*/README.md"))
        names = [str(each.relative_to((ROOT / path).parent)) for each in beside]
        files = [f"- [`{name.removesuffix('README.md')}`]({name})" for name in names]
        text = text.replace("# timerstore\n", "# The README\n", 1) if path in NAMED else text
        return "\n".join([text, "", *files, ""])
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {Path(path).name}\n\n````{language}\n{text.rstrip()}\n````\n"


def notebook_pages(path: Path) -> dict[str, str | bytes]:
    """Make a notebook's page, with its pictures."""
    book = json.loads(path.read_text())
    name = path.stem
    parts: list[str] = []
    made: dict[str, str | bytes] = {}
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"````python\n{source}\n````")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(made) + 1}.png"
                made[f"notebooks/{picture}"] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What the cell above draws]({picture})")
            elif "text/html" in data:
                # Tables of pandas, without the style that each brings.
                html = re.sub(r"(?s)<style.*?</style>", "", "".join(data["text/html"]))
                html = html.replace('<table border="1" class="dataframe">', "<table>")
                parts.append(re.sub(r"\n\s*\n", "\n", html))
            else:
                text = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"````text\n{text.rstrip()}\n````")
    made[f"notebooks/{name}.md"] = "\n\n".join(parts) + "\n"
    return made


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here, then spell out the navigation."""
    _homes.clear()
    examples = (path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".md"))
    left = ["README.md", *(str(path.relative_to(ROOT)) for path in examples)]
    for file in files.documentation_pages():
        left += linked(f"docs/{file.src_uri}", file.content_string)
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        home = str(path.relative_to(ROOT))
        files.remove(files.src_uris[home.removeprefix("docs/")])
        for name, content in notebook_pages(path).items():
            files.append(File.generated(config, name, content=content))
        _homes[place_of(home)] = home
        left += linked(home, str(content))  # the page comes last
    while left:
        home = left.pop()
        name = place_of(home)
        shown = not home.startswith(("..", "docs/")) and (ROOT / home).is_file()
        if shown and name not in files.src_uris:
            text = page_text(home)
            # Parts of an example are reached from its own page.
            is_part = home.endswith(".py") and home.count("/") > 1
            level = InclusionLevel.NOT_IN_NAV if is_part else InclusionLevel.UNDEFINED
            files.append(File.generated(config, name, content=text, inclusion=level))
            _homes[name] = home
            left += linked(home, text) if home.endswith(".md") else []
    pages = sorted(
        file.src_uri
        for file in files.documentation_pages()
        if file.inclusion is not InclusionLevel.NOT_IN_NAV
    )
    config.nav = spelled_out(config.nav, pages)
    return files


def named_by(part: Any) -> list[str]:
    """List the pages, or patterns, of a part of the navigation."""
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [name for each in parts for name in named_by(each)]


def spelled_out(nav: list[Any], pages: list[str]) -> list[Any]:
    """Replace each pattern of the navigation by the pages that no entry before it has."""
    shown = set(named_by(nav))

    def spell(part: Any) -> list[Any]:
        if isinstance(part, str) and "*" not in part:
            return [part]
        if isinstance(part, str):
            found = [page for page in pages if fnmatch.fnmatch(page, part) and page not in shown]
            shown.update(found)
            return found
        ((title, inner),) = part.items()
        if isinstance(inner, str):
            return [{title: page} for page in spell(inner)]
        inside = [new for each in inner for new in spell(each)]
        return [{title: inside}] if inside else []

    return [new for each in nav for new in spell(each)]


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead each link to where the site has the file; what it has not is left as text."""
    name = page.file.src_uri
    home = _homes.get(name, f"docs/{name}")
    if name in FOUND_FIRST:
        page.meta["search"] = {"boost": 2}

    def change(target: str) -> str | None:
        path = resolved(home, target)
        place = place_of(path)
        if place not in files.src_uris and (ROOT / path).exists():
            return None
        return os.path.relpath(place, os.path.dirname(name) or ".")

    return map_links(markdown, change)
