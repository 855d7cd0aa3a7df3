"""Read what a card shows: the value at a stop, its lens, its effect. Bounded, so that a long prompt stays quick."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from IPython.core.magic import magics_class

from djinn_jupyter.api import arrays, patches, stops
from djinn_jupyter.api.names import labelled
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused, Stop, StoppedSession
from djinn_jupyter.api.tables import card_of
from djinn_jupyter.errors import IllegalMove, UnknownSite, UsageError
from djinn_jupyter.link import naming
from djinn_jupyter.magics.kernel_state import KernelState
from djinn_jupyter.magics.parsing import (
    EFFECT,
    HOVER,
    KEEP,
    POSITIONS,
    SAVE,
    SESSION,
    TOKEN,
    Group,
    given,
    option,
    refuse_others,
    unquoted,
    verb,
)
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.diff import DiffSide
from djinn_jupyter.widgets.stop import Look
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire import nouns, readings, sites
from djinn_jupyter.wire.texts import in_quotes, shown

LENS_POINTS = ("resid_pre", "resid_mid", "resid_post")
TOP = 5
POSITIONS_COMPARED, LAYERS_COMPARED = 12, 96
FOLLOWED = 3  # tokens whose probability is drawn over the layers
FEATURES = "T F"  # axes of an added module's value
CARD_TOP = 3  # guesses that fit beside the activation; %djinn_lens shows more


Asked = Sequence[str | int] | None


def effect_asked(args: Namespace) -> Asked:
    """Return the tokens to measure besides the most probable; None without a request for the effect."""
    measured: list[str | int] = getattr(args, "measure", None) or []
    if measured and not args.effect:
        raise UsageError("--measure belongs to --effect: it says which tokens to measure besides.")
    return measured if args.effect else None


def effect_of(session: StoppedSession, asked: Asked) -> Any:
    """Return the effect at the present stop, if requested."""
    return None if asked is None else session.effect(TOP, tokens=asked).reply.effect


def outcome_view(outcome: Stop, *, effect: Asked = None, restored: nouns.Transfer | None = None) -> View:
    """Return the stop card or the result; `restored` is the transfer that the session waited for."""
    if not isinstance(outcome, stops.Paused):
        measured = None if effect is None else [_measured(outcome, token) for token in effect]
        return views.result_view(outcome.reply, restored=restored, measured=measured)
    reading, pooled = effect_of(outcome.session, effect), pooled_for_card(outcome)
    return views.stop_view(outcome.reply, pooled=pooled, lens=_lens(outcome), effect=reading, restored=restored)


def _measured(done: Finished, token: str | int) -> tuple[str, float, float, float]:
    """Return a token with its logit, probability and rank in the final distribution of the run."""
    logit, probability, rank = done.session.metrics(*(f"{name}({token!r})" for name in ("logit", "prob", "rank")))
    return str(token), logit, probability, rank


def restored_by(session: RemoteSession, before: nouns.SessionDescription) -> nouns.Transfer | None:
    """Return the transfer that brought the session back since `before`; None without one, or without bytes."""
    if before.residency == "resident":
        return None
    moved = session.describe().last_transfer
    return moved if moved is not None and moved.direction == "in" and moved != before.last_transfer else None


def sentence(outcome: Stop) -> str:
    """Return the state of a session in one sentence."""
    name = naming.label(outcome.session.name)
    if not isinstance(outcome, stops.Paused):
        return f"Session {name} had finished."
    return f"Session {name} is stopped at {labelled(outcome.site)}, step {outcome.step}; %djinn_resume goes on."


def pooled_for_card(stop: Paused) -> readings.Pooled:
    """Return the value at the stop for its pictures: of all positions, and of the card's rows where a row of pixels may
    cover several; of all features of a module also those of the last position."""
    few, features = len(stop.positions) <= views.ROWS, stop.axes == FEATURES and "[" not in stop.site
    return stops.read_pooled(
        stop.session, alone=None if few else views.positions_shown(stop.reply), last=1 if features else 0
    )


def _lens(stop: Paused) -> Any:
    """Return the lens at the positions of the card; None where the site is not a whole residual."""
    if stop.site.partition(".")[0] not in LENS_POINTS or "[" in stop.site:
        return ()
    return stop.session.lens(CARD_TOP, positions=views.positions_shown(stop.reply)).rows


def lens_by_layer(
    session: RemoteSession, positions: Any, tokens: Sequence[str | int] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the lens's first token after every finished layer, with the probabilities of `tokens`, by default those
    most probable at the last position of the last layer; and the deepest layer's notes on the tokens."""
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
    """Return what a card shows of a site, as pooled by the engine: of a pattern each head and its strongest keys, of
    another value also the last positions. A figure writes numbers, which are not `rounded`."""
    stop = session.stop
    chosen = patches.positions_at(stop, positions)
    if views.site_of(site or stop.site).point == "pattern":
        pooled = stops.read_pattern(session, site, views.PATTERN_CELLS, positions=chosen, ahead=ahead, rounded=rounded)
        return _look(session, stop, pooled, arrays.to_numpy(pooled.cells)[:0], pooled.positions, pooled)
    pooled = stops.read_pooled(session, site, positions=chosen, ahead=ahead, last=views.SNAPSHOT_ROWS, rounded=rounded)
    assert pooled.last is not None
    last = arrays.to_numpy(pooled.last)
    if len(last) == len(pooled.positions):
        return _look(session, stop, pooled, last, pooled.positions)
    return _look(session, stop, pooled, last, pooled.positions[-len(last) :], pooled)


def look_of(session: RemoteSession, snapshot: Any) -> Look:
    """Return a snapshot with the tokens beside it."""
    return _look(session, session.stop, snapshot.reply.snapshot, snapshot.value, snapshot.positions)


def _look(
    session: RemoteSession, stop: Paused, read: Any, values: Any, positions: Any, pooled: readings.Pooled | None = None
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
    """Return the outcome of a session for a comparison: its stop, or the end of its last run in this notebook."""
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
        state=f"paused at {labelled(stop.site)}",
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


def compared(state: KernelState, a: DiffSide, b: DiffSide) -> readings.Compared | None:
    """Return the distance of the stopped values of two sessions; None where they are at different sites."""
    if a.site is None or a.site != b.site:
        return None
    return stops.compare(state.find(a.name), state.find(b.name), last=views.DIFF_ROWS)


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


# Looking: the present stop, a site's value, the logit lens, a site over many passes.

MODULES = ("attn_out", "mlp_out", "z")
EVERY = "all"  # layers, where --layers stands alone


@magics_class
class LookingMagics(Group):
    @verb(EFFECT, TOKEN, KEEP, SESSION)
    def djinn_where(self, args: Namespace) -> None:
        """Draw the present stop again, with all influences on it."""
        session, asked = self.state.session(args.session), effect_asked(args)
        described = session.describe()
        if described.state == "paused":
            stop = session.where()
            self.state.keep(args.keep, stop)
            view = outcome_view(stop, effect=asked)
            self.state.screen.show_stop(view, stop.reply.stop, self.state.engine.channel)
            return
        outcome = self.state.outcomes.get(session.name)
        if outcome is not None and outcome.reply.stop == described.stop:
            self.state.keep(args.keep, outcome)
            self.state.screen.show(outcome_view(outcome, effect=asked))
        else:
            refuse_others(args, f"session {session.label}, which has no stop and no end to show", "session")
            self.state.screen.say(f"{session.label} is {described.state}: {views.armed(described)}")

    @verb(
        option("site", nargs="?", help="a site; by default the stopped one"),
        POSITIONS,
        option("--head", type=int, metavar="N", help="this head alone, as pattern.5[N] does"),
        option(
            "--ahead", action="store_true", help="also where the pass has not been: finish it without edits, to look"
        ),
        HOVER,
        SAVE,
        KEEP,
        SESSION,
    )
    def djinn_inspect(self, args: Namespace) -> None:
        """Read a value of the stopped pass; `-o NAME` keeps it, `NAME.value` is numpy."""
        session = self.state.session(args.session)
        site = _of_head(session, args)
        if args.keep is None:
            look = look_at(session, site, args.positions, ahead=args.ahead, rounded=not (args.hover or args.save))
        else:
            snapshot = session.inspect(site, args.positions, ahead=args.ahead)
            self.state.keep(args.keep, snapshot)
            look = look_of(session, snapshot)
        view = views.snapshot_view(look)
        self.state.screen.show(view)
        self.draw(args, view)

    @verb(
        option(
            "site",
            nargs="?",
            help="a residual site, by default the stopped one; attn_out, mlp_out or z: what each "
            "layer's module (or head) adds to a logit",
        ),
        option("-k", type=int, default=5, help="how many tokens; default 5"),
        POSITIONS,
        option(
            "--layers",
            nargs="?",
            const=EVERY,
            metavar="N,N",
            help="the first token after every layer that has run, and how "
            "probable the last layer's favourites were on the way; --text: these layers alone, such as 0,4 or 2:8",
        ),
        option("--text", action="store_true", help="over the whole text: of resid_post.*, or a tuned lens, as tuned.*"),
        option(
            "--token",
            action="append",
            metavar="TEXT",
            type=unquoted,
            help='--layers, --text: follow this token instead, such as " Paris"; attn_out, mlp_out, z: of '
            "this logit, or of two the difference",
        ),
        option("--ahead", action="store_true", help="attn_out, mlp_out, z: with the layers after the stop too"),
        HOVER,
        SAVE,
        KEEP,
        SESSION,
    )
    def djinn_lens(self, args: Namespace) -> None:
        """The logit lens: the model's prediction if it ended at this site."""
        session = self.state.session(args.session)
        if args.text:
            self._of_text(session, args)
            return
        if args.layers:
            if args.ahead:
                raise UsageError("--layers reads the layers that have run: leave --ahead out, or step on first.")
            if args.site is not None or args.layers != EVERY:
                raise UsageError(
                    "--layers reads every layer that has run: leave the site out; numbers of layers belong to --text."
                )
            refuse_others(args, "--layers", "positions", "token", "hover", "save", "keep", "session")
            by_layer, notes = lens_by_layer(session, args.positions, args.token)
            self.keep_and_draw(args, by_layer, views.lens_grid_view(by_layer, session=session.name))
            for note in notes:
                self.state.screen.say(note)
            return
        if args.site in MODULES:
            self._attribute(session, args)
            return
        if args.ahead:
            raise UsageError(
                f"--ahead belongs to {', '.join(MODULES)}; a site ahead is read by %djinn_inspect --ahead."
            )
        if args.token:
            raise UsageError("--token belongs to --layers: it follows a token's probability from layer to layer.")
        refuse_others(args, "the lens of one site", "site", "k", "positions", "hover", "save", "keep", "session")
        lens = session.lens(args.k, args.site, args.positions)
        self.keep_and_draw(args, lens, views.lens_view(lens.site, lens.rows, session=session.name))

    def _of_text(self, session: RemoteSession, args: Namespace) -> None:
        refuse_others(args, "--text", "site", "k", "layers", "token", "hover", "save", "keep", "session")
        layers = None if args.layers in (None, EVERY) else _layers(args.layers)
        read = session.text_lens(args.k, **given(site=args.site), tokens=args.token or (), layers=layers)
        self.keep_and_draw(args, read, card_of(type(read))(read, session=session.name))

    def _attribute(self, session: RemoteSession, args: Namespace) -> None:
        if not 1 <= len(args.token or ()) <= 2:
            raise UsageError(f'{args.site} needs a token: --token " Paris", or two for the difference of their logits.')
        refuse_others(args, args.site, "site", "token", "positions", "ahead", "hover", "save", "keep", "session")
        at = -1 if args.positions is None else args.positions
        read = session.attribute(*args.token, heads=args.site == "z", position=at, ahead=args.ahead)
        self.keep_and_draw(args, read, card_of(type(read))(read, session=session.name))

    @verb(
        option("site", nargs="?", help="a site; without one, the watches are listed"),
        option(
            "--direction",
            metavar="VECTOR",
            help="record the component along this variable or expression without spaces, which names the watch too",
        ),
        option(
            "--show",
            action="store_true",
            help="show what was recorded; with -o NAME, NAME.values is numpy (without it NAME describes the watch)",
        ),
        option("--fresh", action="store_true", help="forget what it recorded so far, and go on"),
        option("--off", action="store_true", help="end the watch and forget what it recorded; without a site, all"),
        HOVER,
        SAVE,
        KEEP,
        SESSION,
    )
    def djinn_watch(self, args: Namespace) -> None:
        """Record a site at every pass of every run, without stopping, until --off."""
        session = self.state.session(args.session)
        if args.site is None and args.direction is not None:
            raise UsageError(
                f"A direction is watched at a site: %djinn_watch resid_post.4 --direction {args.direction}"
            )
        if args.off:
            refuse_others(args, "--off", "site", "direction", "session")
            count = session.unwatch(args.site, args.direction)
            self.state.screen.say(f"{count} watch{'' if count == 1 else 'es'} ended")
        elif args.site is None:
            refuse_others(args, "the list of watches", "keep", "session")
            watches = session.describe().watches
            self.keep_and_show(args, watches, views.watches_view(watches, session=session.name))
        elif args.show or args.hover or args.save:
            refuse_others(args, "--show", "site", "direction", "hover", "save", "keep", "session")
            watched = session.watched(args.site, args.direction)
            self.state.keep(args.keep, watched)
            read = (watched.reply.watch, watched.values, watched.positions)
            view = views.watch_view(*read, runs=watched.runs, session=session.name)
            self.state.screen.show(view)
            self.draw(args, view)
        else:
            self._watch(session, args)

    def _watch(self, session: RemoteSession, args: Namespace) -> None:
        name = args.direction
        along = None if name is None else self.state.value(name)
        watch = session.watch(args.site, fresh=args.fresh, direction=along, name=name)
        self.state.keep(args.keep, watch)
        again = watch.site if name is None else f"{watch.site} --direction {name}"
        kept = "" if args.keep is None else f"; {args.keep} describes the watch, and with --show it has the values"
        self.state.screen.say(f"{views.watching(watch)} at every pass; %djinn_watch {again} --show shows it{kept}")


def _layers(text: str) -> tuple[int, ...]:
    """Return the layers of `0,4` or `2:8`. Raises UsageError."""
    try:
        return sites.parse_selector(text)
    except UnknownSite:
        raise UsageError(f"--layers {shown(text)} names no layers: write 0,4 or 2:8 (its end excluded).") from None


def _of_head(session: RemoteSession, args: Namespace) -> str | None:
    """Return the site to look at, with the head that --head chose."""
    site: str | None = args.site
    if args.head is None:
        return site
    site = site if site is not None else session.stop.site
    if "[" in site:
        raise UsageError(f"{site} selects already: write the head in its brackets, or leave them out for --head.")
    if views.site_of(site).point not in sites.HEAD_POINTS:
        raise UsageError(f"{site} has no heads, which are of {', '.join(sorted(sites.HEAD_POINTS))}.")
    if args.head < 0:
        raise UsageError("Heads are counted from 0: write --head 0.")
    return f"{site}[{args.head}]"
