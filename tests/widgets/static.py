"""A card's HTML: well formed, without scripts, and fetching nothing."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"img", "br"}
INLINE = ("data:image/png;base64,", "data:image/svg+xml,")
LIVE = {"script", "link", "iframe", "object", "embed", "a", "button", "input"}


class _Checker(HTMLParser):
    """Checks that every tag is closed in order; lists its other problems."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in LIVE:
            self.problems.append(f"a {tag}")
        given = dict(attributes)
        if tag == "img" and not given.get("alt"):
            self.problems.append("a picture without alt text")
        addresses = {"src"} if tag == "img" else given.keys() & {"src", "href"}
        if not all((given.get(name) or "").startswith(INLINE) for name in addresses):
            self.problems.append(f"a {tag} that is fetched from somewhere")
        if any(name.startswith("on") for name in given):
            self.problems.append(f"a script in {tag}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")


def faults_in(html: str) -> list[str]:
    """Return what is wrong with the HTML of a card."""
    checker = _Checker()
    checker.feed(html)
    checker.close()
    return [*checker.problems, *(f"<{tag}> is never closed" for tag in checker.open)]
