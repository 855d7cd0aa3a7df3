"""Small pieces of static HTML: escaped text, elements, tables. No scripts, no links, nothing fetched."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from html import escape
from typing import Final

from djinn_jupyter.api.names import labelled
from djinn_jupyter.wire.texts import label

LITERAL: Final = " mathjax_ignore tex2jax_ignore"  # or JupyterLab and nbconvert typeset formulas in a card's texts
GAP: Final = "\u2003"
INKS: Final = {"paused": "#e06c28", "done": "#2e7ad6"}
HEAD: Final = "display:flow-root;background:#8882"
TEXT: Final = "white-space:pre-wrap;overflow-wrap:anywhere;font-size:14px"
SCROLL: Final = "overflow:auto"
SOFT: Final = "opacity:.7"
WHOSE: Final = "float:right;margin-top:2px"
GREY, CHANGED = "s", "b"  # colours of bars beside the usual one, as their elements
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
    return element("div", *contents, class_=class_ or None, **attributes)


def span(class_: str, *contents: object, **attributes: object) -> Html:
    return element("span", *contents, class_=class_ or None, **attributes)


def small(*contents: object, **attributes: object) -> Html:
    return element("small", *contents, **attributes)


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

    def made(content: object, column: int, kind: str) -> Html:
        if isinstance(content, Html) and content.startswith(("<td", "<th")):
            return content
        number = column in numeric
        shown = unbroken(content) if number and kind == "td" else content
        return element(kind, shown, class_="dj-num" if number else None, scope="col" if kind == "th" else None)

    def line(cells: Sequence[object], kind: str) -> Html:
        return element("tr", joined(made(cell, i, kind) for i, cell in enumerate(cells)))

    top = element("thead", line(head, "th")) if head else None
    body = element("tbody", joined(line(row, "td") for row in rows))
    drawn = element(
        "table", top, body, class_=class_, style="margin-left:0"
    )  # a page without the sheet would centre it
    return div("dj-last" if last else "", drawn, style=SCROLL)


def unbroken(cell: object) -> object:
    """Return a cell whose text keeps to one line."""
    return cell if cell is None or isinstance(cell, Html) else str(cell).replace(" ", "\u00a0")


def over(name: object) -> Html:
    """Return the head of a column of cells that are no wider than `name`."""
    return element("th", name, scope="col", style="text-align:center;padding:0")


def folded(content: Html, name: str = "as a table") -> Html:
    """Return content that is shown on a click, without a script: details beyond a picture."""
    return element("details", element("summary", name, class_="dj-soft"), content)


# The style of all cards. Every output stands alone: JupyterLab removes off-screen cells from the page, and with them
# any style sheet that other cells would depend on. So the sheet is short: what an element means by itself (`code`,
# `small`, `th`, `summary`) needs no class, colours are translucent and texts fade, so that they fit every theme, and
# columns yield their width before a width is asked for.

# The rules stand nested in FRAME, so nothing outside a card changes. Its threefold class outweighs the rules for tables
# and code of JupyterLab and of VS Code, which `all:revert` takes back.
FRAME: Final = "font:13px/1.5 system-ui;max-width:960px;margin:4px 0;border:1px solid#8885;"
MEASURED: Final = "container:a/inline-size;"  # where a rule asks for the width of the card
# A rule stands again in the sheet of each card that uses it, also behind a rule that changes it: what two of them set
# for one element is told apart by their selectors, never by their order, but for `all:revert`. What a card has once
# stands in the style of its element, which is shorter. Bars are `u`, and `i`, `s` or `b` in it.
STYLE: Final = """
table,tr,td,th,code{all:revert}
table{font-size:12px;border-spacing:0}
td,th{padding:2px 8px 2px 0}
small,th{font:11px/1.5 system-ui;text-align:left}
.dj-soft,small,th{opacity:.7}
code{font:12px menlo,monospace}
>*{padding:6px 12px}
>*~*{border-top:inherit}
.dj-num{text-align:end;font-variant:tabular-nums}
.dj-last{direction:rtl}
.dj-last table{direction:ltr;margin-right:auto}
.dj-last tr>:first-child{position:sticky;left:0;background:var(--jp-layout-color0,Canvas)}
.dj-pair{display:flex;flex-wrap:wrap;gap:4px 1em}
.dj-pair>*{min-width:0}
.dj-long{overflow-wrap:anywhere;min-width:48px}
.dj-tight{padding:0 3px 0 0}
.dj-tint{padding:2px 4px}
.dj-key{vertical-align:bottom;padding:0 0 4px}
.dj-key code{writing-mode:vertical-rl;rotate:180deg}
.dj-cell{min-width:24px;height:22px;padding:0}
.dj-tokens code{padding:2px 3px;line-height:24px}
.dj-tokens code,.dj-rows code{overflow-wrap:anywhere}
.dj-here{box-shadow:0 2px#e06c28}
.dj-new{background:#2e7ad629}
.dj-made{box-shadow:0 2px#888}
.dj-differs{background:#e06c2833}
.dj-queries{position:relative;font:12px/20px menlo,monospace;overflow-wrap:anywhere}
.dj-query{cursor:default;border-bottom:1px dotted#888}
.dj-query:hover,.dj-query:focus{background:#e06c2829}
div.dj-keys{margin-bottom:6px}
.dj-query .dj-keys{position:absolute;left:0;right:0;top:0}
.dj-query:hover .dj-keys,.dj-query:focus .dj-keys{display:block}
.dj-queries:has(.dj-query:hover)>.dj-keys,.dj-queries:has(.dj-query:focus)>.dj-keys,
.dj-queries:has(.dj-query:hover) .dj-query:focus:not(:hover) .dj-keys{visibility:hidden}
.dj-keys bdi{padding:0 2px;white-space:pre-wrap}
u{display:inline-grid;grid:10px/minmax(0,80px);background:#8882}
i{background:#2e7ad6}
s{background:#8889}
b{background:#e06c28}
.dj-note{border-left:3px solid#e06c28;padding-left:9px}
"""
# Beside both sidebars a notebook of two has a cell of 250 pixels: there the most probable guess of five stays.
NARROW: Final = ".dj-rows .dj-tint~td{display:none}"


_SHEET: Final = re.compile(r"<style>.*?</style>", re.DOTALL)
_RULE: Final = re.compile(r"([^{}]+)\{([^{}]*)\}")


def card(
    *parts: object, title: object, beside: object = None, dot: str | None = None, session: str | None = None
) -> Html:
    """Return a framed card: a title line, then its parts one below the other; parts that are None are left out.
    `session` is the name of the session that was read; the folders of a path are left out of the notebook."""
    head = element(
        "div",
        joined([dotted(dot), GAP]) if dot else None,
        element("strong", title),
        joined([GAP, span("", beside, style=SOFT)]) if beside else None,
        joined([" ", small(f"session {label(session)}", style=WHOSE)]) if session else None,
        style=HEAD,
    )
    body = joined(part for part in parts if part is not None)
    literal = LITERAL if "$" in head + body or "\\" in head + body else ""
    return styled(element("div", head, body, class_=f"djinn{literal}"))


def styled(markup: str) -> Html:
    """Prefix markup with the style rules of its contents, replacing an earlier sheet."""
    bare = _SHEET.sub("", markup)
    return Html(sheet(bare) + bare)


def sheet(markup: str) -> str:
    """Return the style sheet of one card: the rules of the classes and elements in it."""
    there = frozenset(re.findall(r"\bdj-[a-z]+|(?<=<)[a-z]+", markup))
    return f"<style>{style(there)}</style>"


def style(there: Container[str] | None = None) -> str:
    """Return the rules of the classes and elements that are `there`, by default all of them."""
    narrow = _rules(NARROW, there)
    wide = _rules(STYLE, there)
    frame = FRAME + MEASURED if narrow else FRAME
    return f".djinn.djinn.djinn{{{frame}{wide}{f'@container(width<340px){{{narrow}}}' if narrow else ''}}}"


def _rules(written: str, there: Container[str] | None) -> str:
    """Return the rules with those of their selectors that can match."""
    made = []
    for selectors, declared in _RULE.findall(written.replace("\n", "")):
        found = [one for one in selectors.split(",") if there is None or all(map(there.__contains__, _needs(one)))]
        made += [f"{','.join(found)}{{{declared}}}"] if found else []
    return "".join(made)


def _needs(selector: str) -> list[str]:
    """Return the classes and elements that a selector names."""
    return re.findall(r"dj-[a-z]+|(?<![-.:\w])[a-z]+", selector)


def part(*contents: object, name: str | None = None) -> Html:
    """Return a section of a card, with a small name above it."""
    return element("div", named(name) if name else None, *contents)


def named(name: object) -> Html:
    """Return the small name of a section or a picture, in a line of its own."""
    return element("div", small(name))


def facts(rows: Sequence[tuple[str, object]]) -> Html:
    """Return a table of names and values, one pair per line."""
    return part(table((), [(span("dj-soft", name), element("td", value, class_="dj-long")) for name, value in rows]))


def mono(text: object) -> Html:
    return element("code", text)


def named_site(site: str) -> Html:
    """Return a site with the names of its features, for a title or a table."""
    named = labelled(site)
    return joined([mono(site), element("bdi", named[len(site) :], class_="dj-soft")]) if named != site else mono(site)


def dotted(kind: str) -> Html:
    """Return the dot of a kind of INKS, or a soft one."""
    ink = {"style": f"color:{INKS[kind]}"} if kind in INKS else {"class_": "dj-soft"}
    return element("span", "\u25cf", **ink, aria_hidden="true")


def meter(share: float, kind: str = "i") -> Html:
    """Return a bar that fills `share` of its frame; pass a rounded figure."""
    return element("u", element(kind, style=f"width:{min(max(share, 0.0), 1.0) * 100:.0f}%"))
