"""Reads what the tests of the prose need out of Markdown."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.*?)\s*#*$")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)[^)]*\)")


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block; ``line`` is that of its first line of code, counted from 1."""

    info: str
    line: int
    code: str


def prose_files() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def split_fences(text: str) -> tuple[list[str], list[CodeBlock]]:
    """The lines with code blanked out, so that numbers stay, then the code."""
    prose: list[str] = []
    blocks: list[CodeBlock] = []
    fence = info = ""
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if fence:
            if match and match["fence"].startswith(fence) and not match["info"].strip():
                blocks.append(CodeBlock(info, number - len(code), "\n".join(code) + "\n"))
                fence = ""
            else:
                code.append(line)
            prose.append("")
        elif match:
            fence, info, code = match["fence"], match["info"].strip(), []
            prose.append("")
        else:
            prose.append(line)
    if fence:
        raise ValueError(f"a fence is opened and never closed: {fence}{info}")
    return prose, blocks


def anchors(prose: list[str]) -> set[str]:
    """The headings' anchors: lower case, spaces as hyphens, no punctuation."""
    found: set[str] = set()
    for line in prose:
        if match := _HEADING.match(line):
            slug = re.sub(r"[^\w\- ]", "", match["text"].lower()).replace(" ", "-")
            again = 1
            unique = slug
            while unique in found:
                unique = f"{slug}-{again}"
                again += 1
            found.add(unique)
    return found


def links(prose: list[str]) -> Iterator[tuple[int, str]]:
    """Each link's line number, then its target."""
    text = "\n".join(re.sub(r"`[^`]*`", "", line) for line in prose)
    for match in _LINK.finditer(text):  # its text may stand on two lines
        yield text.count("\n", 0, match.start()) + 1, unquote(match["target"])
