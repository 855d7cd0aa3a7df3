"""Small pieces of static HTML: escaped text, elements, tables. No scripts, no links, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_VOID = frozenset({"img", "br"})


class Html(str):
    """A string of finished markup, which is not escaped again."""

    __slots__ = ()


def piece(content: object) -> str:
    """Return `content` for use inside an element: markup unchanged, text escaped, None as an empty string."""
    if content is None:
        return ""
    return content if isinstance(content, Html) else escape(str(content), quote=False)


def element(name: str, *contents: object, **attributes: object) -> Html:
    """Return `<name attr="...">contents</name>`. `class_` becomes `class`, `aria_label` `aria-label`; an attribute that
    is None is omitted."""
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{spelled}>")
    return Html(f"<{name}{spelled}>{''.join(piece(c) for c in contents)}</{name}>")


def joined(pieces: Iterable[object], between: str = "") -> Html:
    return Html(between.join(piece(p) for p in pieces))


def div(class_: str, *contents: object, **attributes: object) -> Html:
    return element("div", *contents, class_=class_, **attributes)


def span(class_: str, *contents: object, **attributes: object) -> Html:
    return element("span", *contents, class_=class_, **attributes)


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numeric: Sequence[int] = (),
    last: bool = False,
    class_: str | None = None,
) -> Html:
    """Return a plain table; the columns in `numeric` are aligned right. A cell may be a finished <td> or <th>. A table
    that is too wide shows its first columns; with `last` it shows the row's name and the last columns."""

    def line(cells: Sequence[object], kind: str) -> Html:
        made = (
            cell
            if isinstance(cell, Html) and cell.startswith(("<td", "<th"))
            else element(kind, cell, class_="dj-num" if i in numeric else None, scope="col" if kind == "th" else None)
            for i, cell in enumerate(cells)
        )
        return element("tr", joined(made))

    top = element("thead", line(head, "th")) if head else None
    body = element("tbody", joined(line(row, "td") for row in rows))
    made = element(
        "table", top, body, class_=class_, style="margin-left:0"
    )  # a page that removes the style sheet would centre it
    return div("dj-scroll dj-last" if last else "dj-scroll", made)


def over(name: object) -> Html:
    """Return the head of a column of cells that are no wider than `name`."""
    return element("th", name, scope="col", style="text-align:center;padding:0")


def folded(content: Html, name: str = "as a table") -> Html:
    """Return content that is shown on a click, without a script: details beyond a picture."""
    return element("details", element("summary", name, class_="dj-soft"), content)
