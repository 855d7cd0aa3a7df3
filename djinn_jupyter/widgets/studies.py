"""A study as a card, and as the page in its file: all cards one below the other, which load nothing and run nothing."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from djinn_jupyter._version import __version__
from djinn_jupyter.api.studies import PICTURE, Study, StudyItem, StudyReport
from djinn_jupyter.api.study_files import CARD, member_of
from djinn_jupyter.widgets.html import TEXT, Html, card, div, dotted, element, joined, part, span, table
from djinn_jupyter.widgets.spelling import amount, columns, plural, truncated
from djinn_jupyter.widgets.view import View

SHOWN: Final = 60  # characters of a note in the table
POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
HEAD: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    '<meta name="viewport" content="width=device-width">'
)
STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:980px;margin:24px auto;padding:0 16px}"
    "h2{margin:36px 0 4px;font-size:19px}.note{white-space:pre-wrap;overflow-wrap:anywhere;margin:8px 0}"
    ".soft{color:GrayText;font-size:13px;overflow-wrap:anywhere}img{max-width:100%}bdi{overflow-wrap:anywhere}"
)
ABOUT: Final = "Made with Djinn for Jupyter; in Python dj.study(file) reads it, without an engine."
MARKS: Final = {"ok": "done", "same": "done", "no recipe": "soft"}  # of an outcome; others are drawn as stopped


def study_view(study: Study) -> View:
    """Return the items of a study as a table."""
    head = ["", "title", "kind", "model", "bytes", "note"]
    rows = [
        [str(number), one.title, one.kind, one.model or "", amount(one.nbytes), _beginning(one.note)]
        for number, one in enumerate(study.items)
    ]
    cells = [[row[0], _long(row[1]), row[2], _long(row[3]), row[4], _long(row[5])] for row in rows]
    drawn = part(table(head, cells, numeric=(0, 4))) if rows else None
    where = [part(span("dj-soft", study.path.name))] if study.path is not None else []
    beside = plural(len(rows), "item")
    plain = "\n".join([f"Study {study.name}: {beside}", *([columns(rows, head)] if rows else [])])
    return View(plain=plain, html=card(drawn, *where, title=joined(["Study ", _isolated(study.name)]), beside=beside))


def _beginning(note: str) -> str:
    return truncated(" ".join(note.split()), SHOWN)


def study_item_view(item: StudyItem) -> View:
    """Return an item without values: its picture, or its text and note."""
    pictures = [part(_picture(item))] if item.picture is not None else []
    texts = [part(element("div", text, style=TEXT)) for text in (item.note, "" if pictures else item.text) if text]
    html = card(*pictures, *texts, title=_isolated(item.title), beside=item.kind)
    return View(plain=repr(item), html=html)


def study_report_view(report: StudyReport) -> View:
    """Return the outcome by item."""
    rows = [
        [str(row.number), _long(row.title), joined([_dot(row.outcome), " ", row.outcome]), _long(row.message)]
        for row in report.rows
    ]
    drawn = part(table(["", "title", "outcome", "that is"], rows, numeric=(0,))) if rows else None
    title, _, beside = report.headline.partition(": ")
    return View(plain=repr(report), html=card(drawn, title=title, beside=beside))


def page_of(study: Study) -> bytes:
    """Return the page of a study, UTF-8."""
    contents = [element("li", element("a", _isolated(one.title), href=f"#{n}")) for n, one in enumerate(study.items)]
    body = [
        element("h1", _isolated(study.name)),
        element("p", f"{plural(len(study.items), 'item')}. {ABOUT}", class_="soft"),
        element("ol", joined(contents), start="0") if contents else None,
        *(_section(number, one) for number, one in enumerate(study.items)),
        element("p", f"Djinn {__version__}", class_="soft"),
    ]
    title = element("title", study.name)
    return _encoded(f"{HEAD}{title}<style>{STYLE}</style><body>{joined(body)}")


def alone(card_html: str) -> bytes:
    """Return a card as a page of its own, UTF-8."""
    return _encoded(HEAD + card_html)


def _encoded(page: str) -> bytes:
    return page.encode(errors="backslashreplace")


def _section(number: int, item: StudyItem) -> Html:
    by, unmade = item._described.by, item.unmade
    made = [f"Not computed again: {unmade}."] if unmade else []
    if by is not None:
        versions = f"torch {by.torch}, transformers {by.transformers}, Djinn {by.djinn}"
        made = [f"{item.model}; {by.dtype} on {by.processor}; {versions}. It can be computed again."]
    made += [f"Values: {member_of(number, part)}" for part in item._parts if part not in (CARD, PICTURE)]
    return element(
        "section",
        element("h2", _isolated(item.title), id=str(number)),
        div("note", item.note) if item.note else None,
        _drawn(item),
        element("p", " ".join(made), class_="soft") if made else None,
    )


def _drawn(item: StudyItem) -> Html | None:
    kept = item._parts.get(CARD)
    if item.picture is not None:
        return _picture(item)
    return None if kept is None else Html(kept.decode(errors="replace").removeprefix(HEAD))


def _picture(item: StudyItem) -> Html:
    data = b64encode(item.picture or b"").decode()
    return element("img", src=f"data:image/png;base64,{data}", alt=item.title, style="max-width:100%")


def _isolated(text: str) -> Html:
    """Return a text whose direction does not change that of what follows."""
    return element("bdi", text)


def _long(text: str) -> Html:
    return element("td", _isolated(text), class_="dj-long")


def _dot(outcome: str) -> Html:
    return dotted(MARKS.get(outcome, "paused")) if outcome in MARKS else Html("")
