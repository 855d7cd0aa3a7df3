"""Spell residency: the place of a session's bytes, the cost of a move, and the contents of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from djinn_jupyter.api.memory_trace import MemoryTrace, Reading, TracedTransfer
from djinn_jupyter.units import spell_option, spell_rate
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.charts import AXIS, SOFT, WIDTH, MemoryCourse, course_of, drawn, largest
from djinn_jupyter.widgets.html import Html, card, div, element, folded, joined, mono, part, small, table
from djinn_jupyter.widgets.panels import BLUE, ORANGE, Lines
from djinn_jupyter.widgets.spelling import amount, columns, duration, figure, percent, plural
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire import nouns, replies
from djinn_jupyter.wire.texts import distinct_labels, label

PLACES = {"resident": "on device", "storing": "leaving", "host": "on host", "loading": "coming back", "disk": "on disk"}
CAUSES = {
    "asked": "as asked",
    "pressure": "to make room",
    "idleness": "because it stood idle",
    "prefetch": "ahead of its use",
    "needed": "when it was needed",
    "write_through": "as a copy",
}


def transfer_line(transfer: nouns.Transfer) -> str:
    """Spell a transfer: `restored 1.6 GiB from host in 34 ms`, `moved 1.6 GiB to disk in 1.2 s`, or that nothing had to
    be copied."""
    if not transfer.bytes_moved:
        out = transfer.direction == "out"
        return f"{'moved to' if out else 'restored from'} {transfer.tier}; nothing had to be copied, " + (
            f"the {transfer.tier} has it" if out else "the device has it"
        )
    size, took = amount(transfer.bytes_moved), duration(transfer.seconds)
    if transfer.direction == "in":
        return f"restored {size} from {transfer.tier} in {took}"
    return f"moved {size} to {transfer.tier} in {took}"


def swapped_line(name: str, transfer: nouns.Transfer | None, *, out: bool) -> str:
    """Return the output of `%djinn_swap`, also for a session that had nothing to move."""
    if transfer is not None:
        return f"{label(name)}: {transfer_line(transfer)}"
    return f"{label(name)}: nothing to move, {'it holds no bytes on the device' if out else 'it is on the device'}"


def rest_line(name: str, seconds: float, *, leaves: bool) -> str:
    """Return the output of `%djinn_rest`."""
    meanwhile = "it leaves the device until then" if leaves else "it stays on the device unless others need its room"
    return f"{label(name)}: wanted again in {duration(seconds)}; {meanwhile}"


def whereabouts(session: nouns.SessionDescription) -> nouns.Residency:
    """Return the tier of a session's bytes. Pages shared with a fork go to disk with the fork, even those of a session
    on the host."""
    on_disk_alone = session.residency == "host" and not session.host_bytes and session.disk_bytes
    return "disk" if on_disk_alone else session.residency


def bytes_where(session: nouns.SessionDescription) -> int:
    """Return the bytes of a session in the tier that `whereabouts` names."""
    place = whereabouts(session)
    if place in ("resident", "storing"):
        return session.device_bytes
    return session.disk_bytes if place == "disk" else session.host_bytes


def copies(session: nouns.SessionDescription) -> str:
    """Spell a session's bytes in other tiers, `1.2 MiB on host` for a resident one, and its bytes without a copy."""
    held = [
        f"{amount(size)} on {tier}"
        for tier, size in (("host", session.host_bytes), ("disk", session.disk_bytes))
        if size and whereabouts(session) != tier
    ]
    return ", ".join([*held, f"{amount(session.dirty_bytes)} without a copy"] if session.dirty_bytes else held)


def tier_line(tier: nouns.TierStatistics) -> str:
    """Spell the accounting of a tier: bytes in use, the limit, and the bytes moved in and back."""
    used = f"{amount(tier.bytes_used)} of {amount(tier.bytes_limit)} in use, {plural(tier.pages, 'page')}"
    return f"{used}; {amount(tier.bytes_out)} came, {amount(tier.bytes_in)} went back"


def saved_line(saved: replies.CheckpointSaved) -> str:
    """Return the output of `%djinn_checkpoint`."""
    kept = saved.checkpoint
    return f"checkpoint {kept.name} saved: {_moment(kept)}, {amount(kept.bytes_stored)}"


def checkpoints_view(kept: Sequence[nouns.CheckpointDescription], left_out: int = 0) -> View:
    """List the checkpoint files, the newest first."""
    if not kept:
        return View(plain="no checkpoints", html=card(title="Checkpoints", beside="no checkpoints"))
    newest = sorted(kept, key=lambda c: (-c.saved, c.name))
    rows = [[c.name, label(c.session), _moment(c), c.dtype, amount(c.bytes_stored), _when(c)] for c in newest]
    head = ["checkpoint", "of session", "stands at", "dtype", "size", "saved"]
    made = [[mono(name), *rest] for name, *rest in rows]
    more = f"and {left_out:,} older ones, which can be restored by their names" if left_out else ""
    return View(
        plain=columns(rows, head) + (more and f"\n{more}"),
        html=card(part(table(head, made, numeric=(4,))), title="Checkpoints", beside=more),
    )


def _moment(kept: nouns.CheckpointDescription) -> str:
    stop = "" if kept.stopped_at is None else f", stopped at {kept.stopped_at}, step {kept.step}"
    return f"{plural(kept.tokens, 'token')}{stop}"


def _when(kept: nouns.CheckpointDescription) -> str:
    return datetime.fromtimestamp(kept.saved).strftime("%Y-%m-%d %H:%M")


def weights_line(weights: nouns.WeightsStatistics) -> str:
    """Spell the residency of the weights in one line; for streamed weights with the resident bytes and the bytes moved
    per pass."""
    if weights.residency == "asleep":
        return f"{amount(weights.bytes_total)}, asleep: the next request that needs them brings them back"
    if weights.residency == "resident":
        return f"{amount(weights.bytes_on_device)} on the device"
    return (
        f"{amount(weights.bytes_on_device)} of {amount(weights.bytes_total)} on the device; "
        f"{plural(weights.layers_streamed, 'layer')} stream{'s' if weights.layers_streamed == 1 else ''}, "
        f"{amount(weights.bytes_streamed_per_pass)} a pass through {plural(weights.ring_slots, 'slot')}"
    )


def expected_line(weights: nouns.WeightsStatistics) -> str | None:
    """Spell the least time per token, and the device memory at which nothing would stream; None if not measured."""
    if weights.link_bytes_per_second is None or weights.bytes_enough is None:
        return None
    least = weights.bytes_streamed_per_pass / weights.link_bytes_per_second
    return (
        f"at least {duration(least)} a token at the measured {spell_rate(weights.link_bytes_per_second)}; "
        f"with --device-memory {spell_option(weights.bytes_enough)} nothing would stream"
    )


def streaming_rows(weights: nouns.WeightsStatistics) -> list[tuple[str, str]]:
    """Return rows on streamed weights: the ring, its copies, the passes' waiting time, and the used share of the
    bytes."""
    if weights.residency != "streamed":
        return []
    rows = [("ring", "; ".join(slot_words(number, slot) for number, slot in enumerate(weights.ring)))]
    rows.append(("layer copies", f"{weights.layer_copies:,} at {_speed(weights)}{_waited(weights)}"))
    if weights.used_fraction is not None:
        rows.append(("experts", f"{percent(weights.used_fraction)} of the moved bytes were used, the rest are experts "
                                "that no token took"))  # fmt: skip
    if weights.bytes_held_on_host:
        rows.append(("host copy", f"{amount(weights.bytes_held_on_host)} of what streams are in host memory, not "
                                  "mapped from a file"))  # fmt: skip
    return rows


def slot_words(number: int, slot: nouns.RingSlot) -> str:
    """Spell a slot: `slot 1: layer 7, filling 41`."""
    if slot.layer is None:
        return f"slot {number}: empty"
    return f"slot {number}: layer {slot.layer}, filling {slot.generation}{', computing' if slot.computing else ''}"


def ring_rows(ring: tuple[nouns.RingSlot, ...]) -> list[list[object]]:
    """Return one row per slot: number, layer, fillings, size."""
    return [
        [number, "empty" if slot.layer is None else f"layer {slot.layer}", f"{slot.generation:,}",
         amount(slot.bytes_allocated)]
        for number, slot in enumerate(ring)
    ]  # fmt: skip


RING_HEAD = ("slot of the ring", "holds", "fillings", "size")


def sleep_line(name: str, moved: replies.WeightsMoved) -> str:
    """Return the output of `%djinn_sleep`, for weights put to sleep or brought back."""
    away = moved.weights.residency == "asleep"
    if moved.seconds == 0:
        return f"the weights of {name} {'are asleep already' if away else 'are on the device already'}"
    if away and moved.weights.ring_slots:
        return (
            f"the weights of {name} left the device in {duration(moved.seconds)}; nothing was copied, the host has all"
        )
    size = amount(moved.weights.bytes_total)
    place = "left the device" if away else "are back on the device"
    return f"the weights of {name} {place}: {size} in {duration(moved.seconds)}"


def _speed(weights: nouns.WeightsStatistics) -> str:
    speed = weights.copy_gigabytes_per_second
    return "a speed not measured" if speed is None else f"{spell_rate(speed * 1e9)}"


def _waited(weights: nouns.WeightsStatistics) -> str:
    if not weights.pass_seconds:
        return ""
    share = percent(min(1.0, weights.waited_seconds / weights.pass_seconds))
    return f"; passes waited for them {share} of their time ({duration(weights.waited_seconds)})"


# Memory as a static view: the stack over time as SVG, and the engine's accounting beside the system's figures.

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 200, 96, 12, 12, 34
MOVES_SHOWN, SESSIONS_SHOWN, SESSIONS_DRAWN = 16, 8, 4
MIB = 2**20
PEOPLE_HEAD = ("person", "on the device", "host", "disk")


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


def trace_view(trace: MemoryTrace) -> View:
    """Show a trace as far as it has come."""
    ended = None if trace.error is None else f"ended: {trace.error}"
    readings = list(trace.readings)
    view = memory_view(trace.model, readings, list(trace.moves), ended=ended)
    return replace(view, chart=lambda: Chart(panels=[_by_time(trace.model, readings)]))


def _by_time(model: str, readings: Sequence[Reading]) -> Lines:
    """Return the bytes on the device over time: all that is accounted for, and the sessions with the most."""
    held = [dict(one.sessions) for one in readings]
    names = distinct_labels(largest(readings, SESSIONS_DRAWN))
    series = {"on the device": [one.accounted / MIB for one in readings]}
    series |= {shown: [one.get(name, 0) / MIB for one in held] for name, shown in names.items()}
    began = readings[0].at
    return Lines(title=f"memory of {model}", places=[one.at - began for one in readings], series=series,
                 across="seconds", measure="MiB")  # fmt: skip


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
    shown = distinct_labels(most)
    rows += [_row(shown[name], [dict(r.sessions).get(name, 0) for r in readings]) for name in largest]
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
    return element("path", d=shape, fill=ORANGE if out else BLUE)


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
    inks = [joined([element("span", "\u25a0", style=f"color:{b.ink}"), " ", small(b.name)]) for b in course.bands]
    dashed = small(f"- - budget {amount(course.budget)}{' (above)' if course.budget > course.high else ''}")
    marks = [small("\u25be left the device, \u25b4 came back")] if course.moves else []
    return element("div", joined([*inks, dashed, *marks], "\u2002"))


def _text(x: int, y: int, text: object, anchor: str) -> Html:
    return element("text", text, x=x, y=y, text_anchor=anchor, fill=SOFT, font_size="11")
