"""Memory as a static view: the stack over time as SVG, and the engine's accounting beside the system's figures."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.client.memory_trace import Reading, TracedTransfer
from djinn_jupyter.widgets.course import MemoryCourse, course_of
from djinn_jupyter.widgets.markup import Html, div, element, folded, span, table
from djinn_jupyter.widgets.residency import CAUSES, transfer_line
from djinn_jupyter.widgets.spelling import amount, columns, figure, plural
from djinn_jupyter.widgets.svg import AXIS, SOFT, WIDTH, drawn
from djinn_jupyter.widgets.theme import card, part
from djinn_jupyter.widgets.view import View
from djinn_jupyter.widgets.weights import RING_HEAD, ring_rows
from djinn_jupyter.wire.names import label

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 200, 96, 12, 12, 34
MOVES_SHOWN, SESSIONS_SHOWN = 16, 8
PEOPLE_HEAD = ("person", "on the device", "host", "disk")
OUT_INK, IN_INK = "#e06c28", "#2e7ad6"


def memory_view(
    model: str, readings: Sequence[Reading], moves: Sequence[TracedTransfer], *, ended: str | None = None
) -> View:
    """Show the bytes on the device from the first reading to the last. `ended` is the reason that a live chart
    stopped."""
    course = course_of(readings, moves)
    sentence = _sentence(readings, moves)
    held = _table("in the engine's accounting", _accounted(readings), once=len(readings) == 1)
    measured = _table("as measured", _system(readings), once=len(readings) == 1)
    ring = ring_rows(readings[-1].ring)
    people = _people(readings[-1])
    listed = [_move(move) for move in moves[-MOVES_SHOWN:]]
    html = card(
        part(_chart(course) if len(readings) > 1 else _bar(course), _legend(course)),
        part(div("dj-pair", *(table(head, rows, numeric=range(1, len(head))) for head, rows in (held, measured)))),
        part(table(RING_HEAD, ring, numeric=(0, 2, 3))) if ring else None,
        part(table(PEOPLE_HEAD, people, numeric=(1, 2, 3))) if people else None,
        part(folded(table(["at", "session", "move", "why"], listed), _moves_name(moves))) if moves else None,
        title=f"Memory of {model}",
        beside=f"{sentence}; {ended}" if ended else sentence,
    )
    plain = [f"memory of {model}: {sentence}", *(columns(rows, head) for head, rows in (held, measured))]
    if ring:
        plain.append(columns([[str(cell) for cell in row] for row in ring], RING_HEAD))
    if people:
        plain.append(columns(people, PEOPLE_HEAD))
    return View(plain="\n".join(plain), html=html)


def _people(reading: Reading) -> list[list[str]]:
    """Return a row for each person who shares the engine."""
    return [
        [one.person or "the engine's user", *map(amount, (one.device_bytes, one.host_bytes, one.disk_bytes))]
        for one in reading.people
    ]


def _sentence(readings: Sequence[Reading], moves: Sequence[TracedTransfer]) -> str:
    if len(readings) == 1:
        return f"{amount(readings[0].accounted)} of {amount(readings[0].budget)}"
    most = max(reading.accounted for reading in readings)
    took = f"{figure(readings[-1].at - readings[0].at, 2)} s"
    return f"at most {amount(most)} of {amount(readings[-1].budget)} in {took}, {plural(len(moves), 'move')}"


def _table(name: str, rows: list[list[str]], *, once: bool) -> tuple[list[str], list[list[str]]]:
    """Return head and rows; for a single reading without the maximum."""
    if once:
        return [name, "now"], [row[:2] for row in rows]
    return [name, "at the end", "at most"], rows


def _accounted(readings: Sequence[Reading]) -> list[list[str]]:
    most: dict[str, int] = {}
    for name, size in (session for reading in readings for session in reading.sessions):
        most[name] = max(size, most.get(name, 0))
    last = dict(readings[-1].sessions)
    largest = sorted(most, key=lambda name: (-last.get(name, 0), -most[name], name))[:SESSIONS_SHOWN]
    rest = most.keys() - set(largest)
    streams = any(r.ring for r in readings)
    rows = [_row("weights that stay" if streams else "weights", [r.weights for r in readings])]
    if streams:
        rows.append(_row("ring", [r.ring_bytes for r in readings]))
    rows += [_row(label(name), [dict(r.sessions).get(name, 0) for r in readings]) for name in largest]
    if rest:
        others = [sum(size for name, size in r.sessions if name in rest) for r in readings]
        rows.append(_row(plural(len(rest), "other session"), others))
    rows.append(_row("empty pages", [r.empty for r in readings]))
    rows.append(_row("on the device", [r.accounted for r in readings]))
    rows.append(["budget", amount(readings[-1].budget), ""])
    return [*rows, _row("host", [r.host for r in readings]), _row("disk", [r.disk for r in readings])]


def _system(readings: Sequence[Reading]) -> list[list[str]]:
    rows = [_row("the engine's process", [r.process for r in readings])]
    for name, sizes in (
        ("of it, parts of files", [r.mapped for r in readings]),
        ("of it, Python and libraries", [r.runtime for r in readings]),
        ("of it, not accounted for", [r.beyond for r in readings]),
    ):
        if sizes[-1] is not None:
            rows.append(_row(name, sizes))
    rows.append(_row("device in use", [r.in_use for r in readings]))
    rows.append(_row("of it, other programs", [r.others for r in readings]))
    total = readings[-1].total
    return [*rows, ["device in all", amount(total), ""]] if total is not None else rows


def _row(name: str, sizes: Sequence[int | None]) -> list[str]:
    most = max((size for size in sizes if size is not None), default=None)
    return [name, amount(sizes[-1]), "" if most is None else amount(most)]


def _move(move: TracedTransfer) -> list[object]:
    return [f"{figure(move.at, 3)} s", label(move.session), transfer_line(move.transfer), CAUSES[move.transfer.cause]]


def _moves_name(moves: Sequence[TracedTransfer]) -> str:
    shown = f"the last {MOVES_SHOWN} of " if len(moves) > MOVES_SHOWN else ""
    return f"{shown}{plural(len(moves), 'move')}, as a table"


def _chart(course: MemoryCourse) -> Html:
    base, high = HEIGHT - BOTTOM, course.high
    first, spread = course.times[0], (course.times[-1] - course.times[0]) or 1.0

    def x(at: float) -> int:
        return LEFT + round((at - first) / spread * (WIDTH - LEFT - RIGHT))

    def y(size: int) -> int:
        return TOP + round((1 - size / high) * (base - TOP))

    areas, below = [], [0] * len(course.times)
    for band in course.bands:
        above = [low + size for low, size in zip(below, band.sizes, strict=True)]
        upper = [f"{x(at)},{y(size)}" for at, size in zip(course.times, above, strict=True)]
        lower = [f"{x(at)},{y(size)}" for at, size in zip(course.times, below, strict=True)]
        areas.append(element("polygon", points=" ".join(upper + lower[::-1]), fill=band.ink))
        below = above
    marks = [_mark(x(at), base, out) for at, out in course.moves]
    return drawn(
        element("path", d=f"M{LEFT},{TOP}V{base}H{WIDTH - RIGHT}", fill="none", stroke=AXIS),
        *areas,
        _budget(y(course.budget)) if course.budget <= high else None,
        *marks,
        _text(LEFT - 6, y(high) + 4, amount(high), "end"),
        _text(LEFT - 6, base + 4, "0", "end"),
        _text(LEFT, HEIGHT - 4, "0 s", "start"),
        _text(WIDTH - RIGHT, HEIGHT - 4, f"{figure(spread, 2)} s", "end"),
        alt=_alt(course),
        height=HEIGHT,
    )


def _budget(at: int) -> Html:
    line = f"M{LEFT},{at}H{WIDTH - RIGHT}"
    return element("path", d=line, stroke=SOFT, stroke_dasharray="5 4", fill="none")


def _mark(x: int, base: int, out: bool) -> Html:
    """Draw a small triangle below the axis: down for a move off the device, up for a move back."""
    shape = f"M{x - 3},{base + 4}h6l-3,6z" if out else f"M{x - 3},{base + 10}h6l-3,-6z"
    return element("path", d=shape, fill=OUT_INK if out else IN_INK)


def _bar(course: MemoryCourse) -> Html:
    """Draw one reading as a horizontal stack."""
    wide, at, parts = WIDTH - LEFT - RIGHT, 0, []
    for band in course.bands:
        width = round(band.sizes[-1] / course.high * wide)
        parts.append(element("rect", x=LEFT + at, y=6, width=width, height=22, fill=band.ink))
        at += width
    frame = element("rect", x=LEFT, y=6, width=wide, height=22, fill="none", stroke=AXIS)
    return drawn(*parts, frame, _text(LEFT - 6, 21, "0", "end"), alt=_alt(course), height=34)


def _alt(course: MemoryCourse) -> str:
    held = ", ".join(f"{band.name} {amount(band.sizes[-1])}" for band in course.bands)
    return f"memory on the device, at the end: {held}; budget {amount(course.budget)}"


def _legend(course: MemoryCourse) -> Html:
    inks = [span("", element("span", "\u25a0", style=f"color:{b.ink}"), " ", b.name) for b in course.bands]
    dashed = [span("", f"- - budget {amount(course.budget)}{' (above)' if course.budget > course.high else ''}")]
    marks = [span("", "\u25be left the device, \u25b4 came back")] if course.moves else []
    return div("dj-legend", *inks, *dashed, *marks)


def _text(x: int, y: int, text: object, anchor: str) -> Html:
    return element("text", text, x=x, y=y, text_anchor=anchor, fill=SOFT, font_size="11")
