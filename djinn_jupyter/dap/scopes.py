"""The scopes of a stack frame: activation, logit lens, tokens, session."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.client.top_tokens import spell_top
from djinn_jupyter.dap import summaries
from djinn_jupyter.dap.containers import Container, Fixed, Listed, Variable
from djinn_jupyter.dap.tree import Enclosing
from djinn_jupyter.dap.values import Activation, StoppedValues
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire.nouns import LensRow
from djinn_jupyter.wire.sites import parse_site

TOP = 5
CHEAP_ROWS = 64
Scope = tuple[str, Container, bool]


def scopes_of(look: StoppedValues, frame: Enclosing | None) -> tuple[Scope, ...]:
    """Return (name, content, True if expensive) of each scope of the stopped site (`frame` None) or of an enclosing
    module."""
    rest: tuple[Scope, ...] = (("Tokens", tokens(look), False), ("Session", SessionScope(look), False))
    if frame is None:
        long = len(look.stop.positions) > CHEAP_ROWS
        return (("Activation", Activation(look), False), ("Logit lens", lens(look), long), *rest)
    if frame.entry is None:
        return rest
    return (("Input", Activation(look, frame.entry), True), *rest)


def lens(look: StoppedValues) -> Container:
    """Return the most probable next tokens at each position of the pass, by the model's own epilogue."""
    positions = look.stop.positions

    def rows(start: int, count: int) -> Sequence[Variable]:
        chosen = positions[start : start + count]
        found, site = _lens_rows(look, chosen)
        return [_lens_row(row, site) for row in found]

    return Listed(len(positions), rows)


def _lens_rows(look: StoppedValues, positions: tuple[int, ...]) -> tuple[tuple[LensRow, ...], str]:
    """Read the lens at the stop; if its value has not the width of the residual stream, at its layer's `resid_pre`.
    Return the rows and their site."""
    if not positions:
        return (), look.stop.site
    try:
        read = look.lens(TOP, positions=positions)
    except UnknownSite:
        layer = parse_site(look.stop.site).layer
        site = f"resid_pre.{look.stop.layer if layer is None else layer}"
        read = look.lens(TOP, site=site, positions=positions)
    return read.rows, read.site


def _lens_row(row: LensRow, site: str) -> Variable:
    tops = [Variable(name=repr(top.text), value=summaries.number(top.probability)) for top in row.top]
    return Variable(
        name=f"[{row.position}]", value=f"{row.text!r} then {spell_top(row.top[:3])}", type=site, inside=Fixed(*tops)
    )


def tokens(look: StoppedValues) -> Container:
    stop = look.stop

    def rows(start: int, count: int) -> Sequence[Variable]:
        return [
            Variable(
                name=f"[{place}]",
                value=repr(stop.texts[place]),
                type=f"token {stop.tokens[place]}, {'prompt' if place < stop.prompt_tokens else 'new'}"
                f"{', in this pass' if place in stop.positions else ''}",
            )
            for place in range(start, start + count)
        ]

    return Listed(len(stop.tokens), rows)


class SessionScope(Container):
    """The session's stop, text, breakpoints, rules, earlier stops and residency."""

    def __init__(self, look: StoppedValues) -> None:
        self._look = look

    def fields(self) -> Sequence[Variable]:
        held = self._look.session.describe()
        self._look.check(held.stop)
        stop = self._look.stop
        first, last = stop.positions[0], stop.positions[-1]
        breakpoints = [
            Variable(name=str(b.number), value=f"{b.site}{f' when {b.when}' if b.when else ''}, hit {b.hits}")
            for b in held.breakpoints
        ]
        rules = [Variable(name=str(r.number), value=r.what) for r in held.rules]
        stops = [
            Variable(name=str(s.index), value=f"{s.site}, step {s.step} ({s.reason})")
            for s in self._look.session.history().stops
        ]
        return [
            Variable(name="name", value=held.name),
            Variable(name="step", value=str(stop.step)),
            Variable(name="layer", value=f"{stop.layer} of {stop.layers} run"),
            Variable(name="positions", value=str(first) if first == last else f"{first}..{last}"),
            Variable(name="text", value=repr(stop.text)),
            Variable(name="new text", value=repr(stop.new_text)),
            _list("breakpoints", breakpoints),
            _list("rules", rules),
            _list("stops", stops),
            Variable(name="residency", value=f"{held.residency}, {held.device_bytes:,} bytes on the device"),
        ]


def _list(name: str, entries: list[Variable]) -> Variable:
    return Variable(name=name, value=str(len(entries)), inside=Fixed(*entries) if entries else None)
