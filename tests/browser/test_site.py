"""The site that `make docs` builds: its links lead somewhere, it loads nothing from elsewhere, and it can be searched
when its pages are opened as files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.house.repository import ROOT

SITE = ROOT / "build" / "site"
LOADED = {"script", "link", "img", "iframe", "source"}


class Links(HTMLParser):
    """The addresses and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.followed: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := given.get(key))}
        for address in (given.get("href"), given.get("src")):
            if address and not address.startswith("data:"):
                (self.loaded if tag in LOADED else self.followed).append(address)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Links]:
    """The pages of the site, newly built, by file."""
    outer = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    command = ["make", "--assume-old=.venv/.set-up", "docs"]
    done = subprocess.run(command, cwd=ROOT, env=outer, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path: Links(path) for path in sorted(SITE.rglob("*.html")) if path.name != "404.html"}


def targets(page: Path, addresses: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each address that lies in the site."""
    for address in addresses:
        parts = urlsplit(address)
        if not parts.scheme:
            yield (page.parent / unquote(parts.path)).resolve() if parts.path else page, unquote(parts.fragment)


def test_every_link_and_anchor_leads_somewhere(pages: dict[Path, Links]) -> None:
    assert len(pages) > 50
    for page, links in pages.items():
        for target, anchor in targets(page, links.followed + links.loaded):
            file = target / "index.html" if target.is_dir() else target
            assert file.is_file(), (page, target)
            assert not anchor or file not in pages or anchor in pages[file].anchors, (page, target, anchor)


def test_every_page_is_found_from_the_index(pages: dict[Path, Links]) -> None:
    found, waiting = {SITE / "index.html"}, [SITE / "index.html"]
    while waiting:
        page = waiting.pop()
        new = {target for target, _ in targets(page, pages[page].followed) if target in pages} - found
        found |= new
        waiting += new
    assert {*pages} - found == set()


def test_nothing_is_loaded_from_elsewhere_and_the_search_finds_a_heading(
    pages: dict[Path, Links], page: Page, artifacts: Path
) -> None:
    assert [(path, one) for path, links in pages.items() for one in links.loaded if urlsplit(one).scheme] == []
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((SITE / "docs" / "reference" / "states.html").as_uri())
    expect(page.locator("div.mermaid")).to_have_count(2)  # drawn; a `pre` before
    page.goto((SITE / "notebooks" / "01_quickstart.html").as_uri())
    expect(page.locator(".djinn:has-text('Paused at resid_post.4')").first).to_be_visible()
    page.goto((SITE / "index.html").as_uri())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=artifacts / f"site-{scheme}.png")
    page.get_by_role("textbox", name="Search").click()
    page.keyboard.type("pinned memory")
    found = page.locator(".md-search-result__link").first
    expect(found).to_be_visible()
    page.screenshot(path=artifacts / "site-search.png")
    found.click()
    page.wait_for_url("**/docs/**")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
