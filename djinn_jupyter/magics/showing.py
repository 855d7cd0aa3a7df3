"""What is fetched for a card: the value at a stop, its lens, its effect. Bounded, so that a long prompt stays quick."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.magics.lazily import naming, stops, views

if TYPE_CHECKING:
    from djinn_jupyter.client.session import RemoteSession
    from djinn_jupyter.client.stops import Finished, Paused, Stop
    from djinn_jupyter.magics.workbench import Workbench
    from djinn_jupyter.widgets.diff import Line
    from djinn_jupyter.widgets.snapshot import Look
    from djinn_jupyter.widgets.view import View
    from djinn_jupyter.wire.nouns import SessionInfo, Transfer

FETCHED_BYTES = 8 * 2**20
LENS_POINTS = ("resid_pre", "resid_mid", "resid_post")
TOP = 5
CARD_TOP = 3  # guesses that fit beside the activation; %djinn_lens shows more


def outcome_view(outcome: Stop, *, effect: bool, restored: Transfer | None = None) -> View:
    """The stop card or the result; `restored` is what the session had to wait for."""
    if not isinstance(outcome, stops.Paused):
        return views.result_view(outcome.reply, restored=restored)
    session = outcome.session
    reading = session.effect(TOP).reply.effect if effect else None
    return views.stop_view(
        outcome.reply, value=value_of(outcome), lens=_lens(outcome), effect=reading, restored=restored
    )


def restored_by(session: RemoteSession, before: SessionInfo) -> Transfer | None:
    """What brought the session back to the device since `before`; None where it was there, or came without bytes."""
    if before.residency == "resident":
        return None
    moved = session.info().last_transfer
    return moved if moved is not None and moved.direction == "in" and moved != before.last_transfer else None


def sentence(outcome: Stop) -> str:
    """Where a session stands, in one sentence."""
    name = naming.label(outcome.session.name)
    if not isinstance(outcome, stops.Paused):
        return f"Session {name} had finished."
    return f"Session {name} is stopped at {outcome.site}, step {outcome.step}; %djinn_resume goes on."


def value_of(stop: Paused) -> Any:
    """The value at the stop, of a long pass the last positions only."""
    row_bytes = 4 * max(1, math.prod(stop.shape[1:]))
    most = max(1, FETCHED_BYTES // row_bytes)
    positions = None if len(stop.positions) <= most else stop.positions[-most:]
    return stop.session.inspect(positions=positions).value


def _lens(stop: Paused) -> Any:
    """The lens at the positions that the card shows; none where the site is not a whole residual."""
    if stop.site.partition(".")[0] not in LENS_POINTS or "[" in stop.site:
        return ()
    return stop.session.lens(CARD_TOP, positions=views.positions_shown(stop.reply)).rows


def look_of(session: RemoteSession, snapshot: Any) -> Look:
    """A snapshot with the tokens beside it."""
    texts = dict(enumerate(session.stop.texts))
    return views.Look(
        site=snapshot.site,
        values=snapshot.value,
        axes=snapshot.axes,
        positions=tuple(snapshot.positions),
        dtype=snapshot.dtype,
        exactness=snapshot.exactness,
        texts=texts,
    )


def line_of(bench: Workbench, name: str) -> Line:
    """What a session has to compare: its stop, or the end of its last run in this notebook."""
    session = bench.find(name)
    try:
        return _stopped_line(session.stop)
    except IllegalMove:
        outcome = bench.outcomes.get(session.name)
    if not isinstance(outcome, stops.Finished):
        raise UsageError(f"Session {session.label!r} neither stands at a stop nor has finished a run in this notebook.")
    return _finished_line(session.name, outcome)


def _stopped_line(stop: Paused) -> Line:
    return views.Line(
        name=stop.session.name,
        state=f"paused at {stop.site}",
        tokens=stop.tokens,
        texts=stop.texts,
        prompt_tokens=stop.prompt_tokens,
        top=stop.session.effect(TOP).after,
        site=stop.site,
        positions=stop.positions,
        value=value_of(stop),
    )


def _finished_line(name: str, done: Finished) -> Line:
    return views.Line(
        name=name,
        state="finished",
        tokens=(*done.prompt_tokens, *done.tokens),
        texts=(*done.prompt_texts, *done.texts),
        prompt_tokens=len(done.prompt_tokens),
        top=done.top,
    )
