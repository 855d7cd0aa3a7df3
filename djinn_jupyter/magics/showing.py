"""The readings fetched for a card: the value at a stop, its lens, its effect. Bounded, so that a long prompt stays
quick."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from djinn_jupyter.client import arrays, figures, pooling, stops
from djinn_jupyter.client import positions as places
from djinn_jupyter.client.engines import naming
from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.texts import in_quotes

if TYPE_CHECKING:
    from djinn_jupyter.client.session import RemoteSession
    from djinn_jupyter.client.stops import Finished, Paused, Stop, StoppedSession
    from djinn_jupyter.magics.kernel_state import KernelState
    from djinn_jupyter.widgets.diff import DiffSide
    from djinn_jupyter.widgets.look import Look
    from djinn_jupyter.widgets.view import View
    from djinn_jupyter.wire.figures import Compared
    from djinn_jupyter.wire.nouns import SessionDescription, Transfer
    from djinn_jupyter.wire.pooling import Pooled

LENS_POINTS = ("resid_pre", "resid_mid", "resid_post")
TOP = 5
POSITIONS_COMPARED, LAYERS_COMPARED = 12, 96
FOLLOWED = 3  # tokens whose probability is drawn over the layers
CARD_TOP = 3  # guesses that fit beside the activation; %djinn_lens shows more


Asked = Sequence[str | int] | None


def effect_asked(args: Namespace) -> Asked:
    """Return the tokens to measure besides the most probable; None where no effect was asked for."""
    measured: list[str | int] = getattr(args, "measure", None) or []
    if measured and not args.effect:
        raise UsageError("--measure belongs to --effect: it says which tokens to measure besides.")
    return measured if args.effect else None


def effect_of(session: StoppedSession, asked: Asked) -> Any:
    """Return the reading of the effect at the present stop, where it was asked for."""
    return None if asked is None else session.effect(TOP, tokens=asked).reply.effect


def outcome_view(outcome: Stop, *, effect: Asked = None, restored: Transfer | None = None) -> View:
    """Return the stop card or the result; `restored` is the transfer that the session had to wait for."""
    if not isinstance(outcome, stops.Paused):
        measured = None if effect is None else [_measured(outcome, token) for token in effect]
        return views.result_view(outcome.reply, restored=restored, measured=measured)
    reading = effect_of(outcome.session, effect)
    return views.stop_view(
        outcome.reply, pooled=pooled_for_card(outcome), lens=_lens(outcome), effect=reading, restored=restored
    )


def _measured(done: Finished, token: str | int) -> tuple[str, float, float, float]:
    """Return a token with its logit, probability and rank in the distribution that the run ended with."""
    logit, probability, rank = done.session.metrics(*(f"{name}({token!r})" for name in ("logit", "prob", "rank")))
    return str(token), logit, probability, rank


def restored_by(session: RemoteSession, before: SessionDescription) -> Transfer | None:
    """Return the transfer that brought the session back since `before`; None where none was needed, or without
    bytes."""
    if before.residency == "resident":
        return None
    moved = session.describe().last_transfer
    return moved if moved is not None and moved.direction == "in" and moved != before.last_transfer else None


def sentence(outcome: Stop) -> str:
    """Return the state of a session in one sentence."""
    name = naming.label(outcome.session.name)
    if not isinstance(outcome, stops.Paused):
        return f"Session {name} had finished."
    return f"Session {name} is stopped at {outcome.site}, step {outcome.step}; %djinn_resume goes on."


def pooled_for_card(stop: Paused) -> Pooled:
    """Return the value at the stop for its pictures: of all positions, and of those in the card's rows where a row of
    pixels may be several."""
    few = len(stop.positions) <= views.ROWS
    return pooling.read_pooled(stop.session, alone=None if few else views.positions_shown(stop.reply))


def _lens(stop: Paused) -> Any:
    """Return the lens at the positions that the card shows; none where the site is not a whole residual."""
    if stop.site.partition(".")[0] not in LENS_POINTS or "[" in stop.site:
        return ()
    return stop.session.lens(CARD_TOP, positions=views.positions_shown(stop.reply)).rows


def lens_by_layer(
    session: RemoteSession, positions: Any, tokens: Sequence[str | int] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the lens's first token after every layer that has run, with `tokens` read besides; without any, those that
    the last layer finds most probable at the last position. And what the deepest layer notes on the tokens."""
    sites = [f"resid_post.{layer}" for layer in range(session.stop.layer)]
    if not sites:
        raise UsageError("No layer has run yet: there is nothing to read by layer.")
    if not tokens:
        deepest = session.lens(FOLLOWED, sites[-1], positions).rows[-1]
        tokens = [top.token for top in deepest.top]
    found = {site: session.lens(1, site, positions, tokens=tokens) for site in sites}
    return {site: lens.rows for site, lens in found.items()}, found[sites[-1]].notes


def look_at(
    session: RemoteSession, site: str | None, positions: Any = None, *, ahead: bool = False, rounded: bool = True
) -> Look:
    """Return what a card shows of a site, as the engine pools it: of a pattern each head and the keys that it weighs
    most, of another value the last positions besides. A figure writes numbers, which are not to be `rounded`."""
    stop = session.stop
    chosen = places.positions_at(stop, positions)
    if views.site_of(site or stop.site).point == "pattern":
        pooled = pooling.read_pattern(
            session, site, views.PATTERN_CELLS, positions=chosen, ahead=ahead, rounded=rounded
        )
        return _look(session, stop, pooled, arrays.to_numpy(pooled.cells)[:0], pooled.positions, pooled)
    pooled = pooling.read_pooled(
        session, site, positions=chosen, ahead=ahead, last=views.SNAPSHOT_ROWS, rounded=rounded
    )
    assert pooled.last is not None
    last = arrays.to_numpy(pooled.last)
    if len(last) == len(pooled.positions):
        return _look(session, stop, pooled, last, pooled.positions)
    return _look(session, stop, pooled, last, pooled.positions[-len(last) :], pooled)


def look_of(session: RemoteSession, snapshot: Any) -> Look:
    """Return a snapshot with the tokens beside it."""
    return _look(session, session.stop, snapshot.reply.snapshot, snapshot.value, snapshot.positions)


def _look(
    session: RemoteSession, stop: Paused, read: Any, values: Any, positions: Any, pooled: Pooled | None = None
) -> Look:
    return views.Look(
        site=read.site,
        values=values,
        axes=read.axes,
        positions=positions,
        dtype=read.dtype,
        exactness=read.exactness,
        texts=dict(enumerate(stop.texts)),
        session=session.name,
        pooled=pooled,
        end=stop.positions[-1] + 1,
        stop=read.stop,
    )


def side_of(state: KernelState, name: str) -> DiffSide:
    """Return the outcome of a session to compare: its stop, or the end of its last run in this notebook."""
    session = state.find(name)
    try:
        return _stopped_side(session.stop)
    except IllegalMove:
        outcome = state.outcomes.get(session.name)
    if not isinstance(outcome, stops.Finished):
        raise UsageError(
            f"Session {in_quotes(session.label)} neither stands at a stop nor has finished a run in this notebook."
        )
    return _finished_side(session.name, outcome)


def _stopped_side(stop: Paused) -> DiffSide:
    return views.DiffSide(
        name=stop.session.name,
        state=f"paused at {stop.site}",
        tokens=stop.tokens,
        texts=stop.texts,
        prompt_tokens=stop.prompt_tokens,
        prompt_text=stop.prompt_text,
        new_text=stop.new_text,
        top=stop.session.effect(TOP).after,
        site=stop.site,
    )


def _finished_side(name: str, done: Finished) -> DiffSide:
    return views.DiffSide(
        name=name,
        state="finished",
        tokens=(*done.prompt_tokens, *done.tokens),
        texts=(*done.prompt_texts, *done.texts),
        prompt_tokens=len(done.prompt_tokens),
        prompt_text=done.prompt_text,
        new_text=done.text,
        top=done.top,
    )


def compared(state: KernelState, a: DiffSide, b: DiffSide) -> Compared | None:
    """Return how far the stopped values of two sessions are apart; None where they do not stand at one site."""
    if a.site is None or a.site != b.site:
        return None
    return figures.compare(state.find(a.name), state.find(b.name), last=views.DIFF_ROWS)


def residuals_of_both(state: KernelState, a: str, b: str) -> tuple[tuple[int, ...], dict[str, tuple[Any, Any]]]:
    """Return the last positions that the stopped passes of two sessions share, and by site the residuals of both there,
    after every layer that both have run."""
    sessions = (state.find(a), state.find(b))
    stopped = tuple(session.stop for session in sessions)
    shared = tuple(sorted(set(stopped[0].positions) & set(stopped[1].positions)))[-POSITIONS_COMPARED:]
    depth = min(stop.layer for stop in stopped)
    if not shared or not depth:
        raise UsageError("The two stopped passes have no layer or no position in common: there is nothing to compare.")
    sites = [f"resid_post.{layer}" for layer in range(depth)][-LAYERS_COMPARED:]
    return shared, {site: _pair(sessions, site, shared) for site in sites}


def _pair(sessions: tuple[RemoteSession, RemoteSession], site: str, positions: tuple[int, ...]) -> tuple[Any, Any]:
    a, b = (session.inspect(site, positions).value for session in sessions)
    return a, b
