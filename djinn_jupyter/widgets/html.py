"""Small pieces of static HTML: escaped text, elements, tables. No scripts, no links, nothing fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import Final

from djinn_jupyter.wire.texts import label

LITERAL: Final = " mathjax_ignore tex2jax_ignore"  # or JupyterLab and nbconvert typeset formulas in a card's texts
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


# The style of all cards: one scoped style sheet on JupyterLab's own variables, with fallbacks for any other page.

# Every rule starts with .djinn, so nothing outside a card changes. The doubled class outweighs .jp-RenderedHTMLCommon.
# Every card carries the rules of its own classes: JupyterLab removes off-screen cells from the page, and with them any
# style sheet that other cells would depend on.
STYLE: Final = """
.djinn{--dj-soft:var(--jp-content-font-color2,#7a7a7a);
--dj-line:var(--jp-border-color2,#80808059);--dj-bar:var(--jp-layout-color2,#80808024);
color:var(--jp-content-font-color1);font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);
max-width:960px;container-type:inline-size;
border:1px solid var(--dj-line);border-radius:3px;margin:4px 0;overflow:hidden}
.djinn .dj-mono{font:12px/1.5 var(--jp-code-font-family,ui-monospace,monospace);line-height:inherit}
.djinn code.dj-mono{background:none;color:inherit;padding:0}
.djinn .dj-head{display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;padding:5px 12px;
background:var(--dj-bar);border-bottom:1px solid var(--dj-line)}
.djinn .dj-head .dj-title{font-weight:600}
.djinn .dj-head .dj-dot{flex:none;align-self:center;width:8px;height:8px;border-radius:50%;background:var(--dj-soft)}
.djinn .dj-head .dj-dot.dj-paused{background:#e06c28}
.djinn .dj-head .dj-dot.dj-done{background:#2e7ad6}
.djinn .dj-soft{color:var(--dj-soft)}
.djinn .dj-part{padding:7px 12px}
.djinn .dj-part+.dj-part{border-top:1px solid var(--dj-line)}
.djinn .dj-name em{font-style:normal}
.djinn .dj-name,.djinn .dj-whose,.djinn .dj-end,.djinn .dj-legend{color:var(--dj-soft);font-size:11px}
.djinn .dj-name{margin-bottom:3px}
.djinn .dj-whose{margin-left:auto}
.djinn .dj-scroll{overflow-x:auto;scrollbar-width:thin}
.djinn .dj-last{direction:rtl}
.djinn.djinn .dj-last>table{direction:ltr;margin-right:auto}
.djinn.djinn .dj-last tr>:first-child{position:sticky;left:0;background:var(--jp-layout-color0,Canvas)}
.djinn.djinn table{border-collapse:collapse;margin:0;font-size:12px;table-layout:auto;color:inherit;border:0}
.djinn.djinn.djinn table tr{background:none}
.djinn.djinn table th,.djinn.djinn table td{text-align:left;white-space:nowrap;padding:0 12px 0 0;height:22px;
line-height:22px;border:0;font-weight:400}
.djinn.djinn table th{color:var(--dj-soft);font-size:11px}
.djinn.djinn table .dj-num{text-align:right;font-variant-numeric:tabular-nums}
.djinn.djinn table thead{border:0}
.djinn.djinn table td.dj-fact{white-space:normal;overflow-wrap:anywhere}
.djinn.djinn .dj-wraps td{white-space:normal;height:auto;line-height:16px;padding-top:3px;padding-bottom:3px}
.djinn.djinn .dj-wraps td.dj-num{white-space:nowrap}
.djinn.djinn .dj-wraps td.dj-long{overflow-wrap:anywhere;min-width:60px}
.djinn.djinn table td.dj-tight{padding:0 3px 0 0}
.djinn.djinn table .dj-tint{padding:0 10px 0 6px}
.djinn.djinn table td.dj-tall{vertical-align:top;line-height:0}
.djinn.djinn table .dj-key{vertical-align:bottom;height:auto;padding:0 0 4px}
.djinn.djinn table .dj-key span{writing-mode:vertical-rl;transform:rotate(180deg);line-height:22px}
.djinn.djinn table td.dj-cell{width:24px;min-width:24px;padding:0}
.djinn .dj-tokens{line-height:24px;overflow-wrap:anywhere}
.djinn .dj-token{display:inline-block;white-space:pre;line-height:18px;padding:0 3px;
margin-right:-2px;border-radius:2px;border-bottom:2px solid transparent}
.djinn .dj-token.dj-here{background:#e06c2829;border-bottom-color:#e06c28}
.djinn .dj-token.dj-new{background:#2e7ad629}
.djinn .dj-token.dj-made{border-bottom-color:var(--dj-soft)}
.djinn .dj-token.dj-differs{background:#e06c2833}
.djinn .dj-queries{position:relative;line-height:20px;overflow-wrap:anywhere}
.djinn .dj-query{cursor:default;border-bottom:1px dotted var(--dj-soft)}
.djinn .dj-query:hover,.djinn .dj-query:focus{background:#e06c2829}
.djinn div.dj-keys{margin-bottom:6px}
.djinn .dj-query .dj-keys{position:absolute;left:0;right:0;top:0}
.djinn .dj-query:hover .dj-keys,.djinn .dj-query:focus .dj-keys{display:block}
.djinn .dj-queries:has(.dj-query:hover)>.dj-keys,.djinn .dj-queries:has(.dj-query:focus)>.dj-keys,
.djinn .dj-queries:has(.dj-query:hover) .dj-query:focus:not(:hover) .dj-keys{visibility:hidden}
.djinn .dj-keys i{font-style:normal;padding:0 2px;white-space:pre-wrap}
.djinn .dj-text{white-space:pre-wrap;overflow-wrap:anywhere;font-size:14px}
.djinn .dj-text .dj-new{background:#2e7ad629;border-radius:2px;padding:1px 0}
.djinn .dj-text .dj-new span{unicode-bidi:isolate}
.djinn .dj-layers{display:flex;gap:2px;align-items:center;max-width:760px}
.djinn .dj-layers .dj-layer{flex:1 1 0;min-width:1px;height:12px;border-radius:1px;background:#80808038}
.djinn .dj-layers .dj-layer.dj-ran{background:#8080809e}
.djinn .dj-layers .dj-layer.dj-half{flex-grow:.5}
.djinn .dj-layers .dj-mark{flex:none;width:3px;height:20px;border-radius:1px;background:#e06c28}
.djinn .dj-layers .dj-end{flex:none;padding:0 4px}
.djinn .dj-meter{display:inline-block;vertical-align:middle;height:10px;width:120px;max-width:24vw;
background:#80808024;
border-radius:1px;overflow:hidden}
.djinn .dj-meter>span{display:block;height:10px;background:#2e7ad6}
.djinn .dj-meter.dj-narrow{width:64px}
.djinn .dj-meter.dj-grey>span{background:#80808099}
.djinn .dj-meter.dj-changed>span{background:#e06c28}
.djinn .dj-guess{display:inline-block;min-width:70px;padding:0 4px;border-radius:2px;line-height:19px}
.djinn .dj-guess .dj-soft{font-size:11px}
.djinn .dj-picture{border:1px solid var(--dj-line);box-sizing:border-box;margin:0;max-width:none;background:none}
.djinn .dj-legend{margin-top:5px;display:flex;flex-wrap:wrap;gap:2px 8px;align-items:center}
.djinn .dj-ramp{display:inline-block;width:90px;height:8px;border-radius:1px;border:1px solid var(--dj-line)}
.djinn .dj-ramp.dj-signed{
background:linear-gradient(90deg,#2e7ad6,#2e7ad600 50%,#e06c2800 50%,#e06c28)}
.djinn .dj-ramp.dj-share{background:linear-gradient(90deg,#440154,#3b518b,#21908d,#5cc863,#fde725)}
.djinn .dj-note{border-left:3px solid #e06c28;padding-left:9px}
.djinn .dj-pair{display:flex;flex-wrap:wrap;gap:10px 32px}
.djinn .dj-pair .dj-name{white-space:nowrap}
.djinn svg{display:block;max-width:100%}
"""
# The width of a cell on a screen of 1360 pixels with both sidebars open, approximately; two notebooks side by side have
# 390 to 510. Text wraps, and a guess has its probability below it. The picture beside a stop's rows goes below them
# already where three long guesses leave no room for it, as on a screen of 900 pixels without a sidebar.
# There the columns of a stop's rows share the width, and a long token ends in an ellipsis (the
# heading of the picture stays as a column of no width: its cell would take an equal share). Beside both sidebars a
# notebook of two has a cell of 250 pixels, where of five guesses the most probable one stays and has the room of all.
NARROW: Final = (
    (
        "@container (max-width:860px)",
        """
.djinn .dj-scroll{position:relative}
.djinn .dj-above{display:none}
.djinn.djinn table td.dj-tall{position:absolute;inset:auto 0 0;height:66px;padding:0}
.djinn .dj-tall img{width:100%!important;height:66px!important}
.djinn.djinn .dj-beside{margin-bottom:74px}
""",
    ),
    (
        "@container (max-width:740px)",
        """
.djinn.djinn table th,.djinn.djinn table td{white-space:normal;line-height:15px;padding:0 5px 0 0}
.djinn.djinn table td.dj-num{white-space:nowrap}
.djinn .dj-guess{display:block;min-width:0;padding:0 2px;line-height:14px;white-space:nowrap}
.djinn .dj-guess .dj-soft{display:block}
.djinn .dj-meter.dj-narrow{width:28px}
.djinn.djinn .dj-facts td{vertical-align:top;height:auto;padding:3px 5px 3px 0}
""",
    ),
    (
        "@container (max-width:560px)",
        """
.djinn.djinn .dj-rows{width:100%;table-layout:fixed}
.djinn .dj-rows th:nth-child(-2n+3){width:44px}
.djinn .dj-rows th:nth-child(2){width:21%}
.djinn.djinn .dj-rows th:nth-child(4),.djinn.djinn .dj-rows .dj-above{display:table-cell;width:0;padding:0;font-size:0}
.djinn .dj-rows .dj-meter{display:none}
.djinn .dj-rows .dj-mono{display:block;overflow:hidden;text-overflow:ellipsis;white-space:pre}
""",
    ),
    (
        "@container (max-width:360px)",
        """
.djinn .dj-rows .dj-tight ~ .dj-tight{display:none}
.djinn .dj-rows .dj-guess{width:300%}
.djinn .dj-rows th:nth-child(n+5){width:38%}
""",
    ),
)


_CLASS: Final = re.compile(r"\bdj-[a-z]+")
_TAGS: Final = ("table", "thead", "svg", "code")
_SHEET: Final = re.compile(r"<style>.*?</style>", re.DOTALL)
_RULE: Final = re.compile(r"([^{}]+)\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"--(dj-[a-z]+):([^;]*);")
_LONG: Final = re.compile(r"--dj-([a-z])[a-z]*")
_CARD: Final = re.compile(r"((?:\.djinn)+) ")


def card(
    *parts: object, title: object, beside: object = None, dot: str | None = None, session: str | None = None
) -> Html:
    """Return a framed card: a title line, then its parts one below the other; parts that are None are left out.
    `session` is the name of the session that was read; the folders of a path are left out of the notebook."""
    # A space between: a page that does not trust the notebook shows the card without this style sheet.
    head = div(
        "dj-head",
        span(f"dj-dot dj-{dot}", "") if dot else None,
        element("strong", title, class_="dj-title"),
        " ",
        span("dj-soft", beside) if beside else None,
        joined([" ", span("dj-whose", f"session {label(session)}")]) if session else None,
    )
    body = joined(part for part in parts if part is not None)
    literal = LITERAL if "$" in head + body or "\\" in head + body else ""
    return styled(element("div", head, body, class_=f"djinn{literal}"))


def styled(markup: str) -> Html:
    """Prefix markup with the style rules of its contents, replacing an earlier sheet."""
    bare = _SHEET.sub("", markup)
    return Html(sheet(bare) + bare)


def sheet(markup: str) -> str:
    """Return the style sheet of one card: the rules of the classes and elements in it, nested in that of the card."""
    there = frozenset(_CLASS.findall(markup)) | frozenset(tag for tag in _TAGS if f"<{tag}" in markup)
    (_, frame), *wide = _rules(STYLE, there)
    narrow = ((condition, _nested(_rules(rules, there))) for condition, rules in NARROW)
    nested = _nested(wide) + "".join(f"{condition}{{{rules}}}" for condition, rules in narrow if rules)
    return f"<style>{_shortened(f'.djinn{{{frame};{nested}}}')}</style>"


def _shortened(style: str) -> str:
    """Return the style without variables that are used once or not at all, the others with names of one letter."""
    for name, value in _VARIABLE.findall(style):
        use = f"var(--{name})"
        if style.count(use) < 2:
            style = style.replace(f"--{name}:{value};", "").replace(use, value)
    return _LONG.sub(r"--\1", style)


def _rules(style: str, there: frozenset[str]) -> list[tuple[list[str], str]]:
    """Return the rules with those of their selectors that can match."""
    found = (
        ([one for one in selectors.split(",") if _needs(one) <= there], declared)
        for selectors, declared in _RULE.findall(style.replace("\n", ""))
    )
    return [rule for rule in found if rule[0]]


def _nested(rules: Iterable[tuple[list[str], str]]) -> str:
    """Return rules as they stand within the card's: without `.djinn`, those with two of it in a block of their own."""
    split = ((_CARD.match(selectors[0]), selectors, declared) for selectors, declared in rules)
    made = []
    for prefix, group in groupby(split, key=lambda rule: "" if rule[0] is None else rule[0][1]):
        inner = "".join(f"{','.join(map(_within, selectors))}{{{declared}}}" for _, selectors, declared in group)
        outer = prefix.removeprefix(".djinn")
        made.append(f"&{outer}{{{inner}}}" if outer else inner)
    return "".join(made)


def _within(selector: str) -> str:
    """Return a selector without its card; one that begins with an element needs the `&` of CSS nesting."""
    rest = _CARD.sub("", selector, count=1)
    return rest if rest.startswith(".") else f"& {rest}"


def _needs(selector: str) -> frozenset[str]:
    words = selector.replace(".", " ").replace(">", " ").replace("+", " ").replace(":", " ").split()
    return frozenset(word for word in words if word.startswith("dj-") or word in _TAGS)


def part(*contents: object, name: str | None = None) -> Html:
    """Return a section of a card, with a small name above it."""
    return div("dj-part", div("dj-name", element("em", name)) if name else None, *contents)


def facts(rows: Sequence[tuple[str, object]]) -> Html:
    """Return a table of names and values, one pair per line."""
    wrapped = (element("td", value, class_="dj-fact") for _, value in rows)
    return part(
        table(
            (),
            [(span("dj-soft", name), value) for (name, _), value in zip(rows, wrapped, strict=True)],
            class_="dj-facts",
        )
    )


def mono(text: object) -> Html:
    return span("dj-mono", text)


def meter(share: float, kind: str = "") -> Html:
    """Return a bar that fills `share` of its frame; pass a rounded figure."""
    width = f"width:{min(max(share, 0.0), 1.0) * 100:.0f}%"
    return span(f"dj-meter {kind}".strip(), element("span", style=width), aria_hidden="true")
