"""Links of the built site: each leads to a file of it, at a place that is there.

MkDocs looks at the links of its pages; this looks at what a browser gets, menus and pictures too.
Nothing but a link that somebody clicks leads out of the site, so it is whole without a network.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

_FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class _Page(HTMLParser):
    """What a page has, and what it asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.clicked: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.places |= {known[name] or "" for name in ("id", "name") if name in known}
        names_only = tag == "link" and known.get("rel") in {"canonical", "next", "prev"}
        if (tag == "a" or names_only) and known.get("href"):
            self.clicked.append(known["href"] or "")
        elif tag in _FETCHED and known.get(_FETCHED[tag]):
            self.fetched.append(known[_FETCHED[tag]] or "")


def wrong_links(site: Path) -> list[str]:
    """List the links of a built site that lead nowhere, one line each."""
    pages = {
        path: _Page(path.read_text())
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"  # it is shown under any address
    }
    wrong: list[str] = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for target in page.clicked + page.fetched:
            parts = urlsplit(target)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if target in page.fetched:
                    wrong.append(f"{where}: {target}: fetched from another site")
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if file.is_dir():
                file /= "index.html"
            if not file.exists():
                wrong.append(f"{where}: {target}: no such file")
            elif parts.fragment and file in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[file].places and not anchor.startswith("__"):
                    wrong.append(f"{where}: {target}: no such place")
    return wrong


def on_post_build(config: MkDocsConfig) -> None:
    """End the build where a link leads nowhere."""
    if wrong := wrong_links(Path(config.site_dir).resolve()):
        raise PluginError("\n".join(["links that lead nowhere:", *wrong]))
