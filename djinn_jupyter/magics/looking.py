"""Looking: where the session stands, a site's value, the logit lens, a site over many passes."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import magics_class

from djinn_jupyter.client.displayed import card_of
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import (
    EFFECT,
    HOVER,
    KEEP,
    POSITIONS,
    SESSION,
    TOKEN,
    Group,
    option,
    refuse_others,
    unquoted,
    verb,
)
from djinn_jupyter.magics.showing import effect_asked, lens_by_layer, look_at, look_of, outcome_view
from djinn_jupyter.widgets import views
from djinn_jupyter.wire import sites

if TYPE_CHECKING:
    from djinn_jupyter.client.session import RemoteSession

MODULES = ("attn_out", "mlp_out", "z")


@magics_class
class LookingMagics(Group):
    @verb(EFFECT, TOKEN, KEEP, SESSION)
    def djinn_where(self, args: Namespace) -> None:
        """Draw where the session stands once more: its stop, with all that influences it."""
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
        KEEP,
        SESSION,
    )
    def djinn_inspect(self, args: Namespace) -> None:
        """Look at a value of the stopped pass; `-o NAME` keeps it, `NAME.value` is numpy."""
        session = self.state.session(args.session)
        site = _of_head(session, args)
        if args.keep is None:
            look = look_at(session, site, args.positions, ahead=args.ahead, rounded=not args.hover)
        else:
            snapshot = session.inspect(site, args.positions, ahead=args.ahead)
            self.state.keep(args.keep, snapshot)
            look = look_of(session, snapshot)
        self.state.screen.show(views.snapshot_view(look, hover=args.hover))

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
            action="store_true",
            help="the first token after every layer that has run, and how "
            "probable the last layer's favourites were on the way",
        ),
        option(
            "--token",
            action="append",
            metavar="TEXT",
            type=unquoted,
            help='--layers: follow this token instead, such as " Paris"; attn_out, mlp_out, z: of '
            "this logit, or of two the difference",
        ),
        option("--ahead", action="store_true", help="attn_out, mlp_out, z: with the layers after the stop too"),
        HOVER,
        KEEP,
        SESSION,
        literal=True,
    )
    def djinn_lens(self, args: Namespace) -> None:
        """The logit lens: what the model would say if it ended at this site."""
        session = self.state.session(args.session)
        if args.layers:
            if args.ahead:
                raise UsageError("--layers reads the layers that have run: leave --ahead out, or step on first.")
            if args.site is not None:
                raise UsageError("--layers reads every layer that has run: leave the site out.")
            refuse_others(args, "--layers", "positions", "token", "keep", "session")
            by_layer, notes = lens_by_layer(session, args.positions, args.token)
            self.state.keep(args.keep, by_layer)
            self.state.screen.show(views.lens_grid_view(by_layer, session=session.name))
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
        refuse_others(args, "the lens of one site, which has no figure", "site", "k", "positions", "keep", "session")
        lens = session.lens(args.k, args.site, args.positions)
        self.state.keep(args.keep, lens)
        self.state.screen.show(views.lens_view(lens.site, lens.rows, session=session.name))

    def _attribute(self, session: RemoteSession, args: Namespace) -> None:
        if not 1 <= len(args.token or ()) <= 2:
            raise UsageError(f'{args.site} needs a token: --token " Paris", or two for the difference of their logits.')
        refuse_others(args, args.site, "site", "token", "positions", "ahead", "hover", "keep", "session")
        at = -1 if args.positions is None else args.positions
        read = session.attribute(*args.token, heads=args.site == "z", position=at, ahead=args.ahead)
        self.state.keep(args.keep, read)
        self.state.screen.show(card_of(type(read))(read, session=session.name, hover=args.hover))

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
            self.state.keep(args.keep, watches)
            self.state.screen.show(views.watches_view(watches, session=session.name))
        elif args.show or args.hover:
            refuse_others(args, "--show", "site", "direction", "hover", "keep", "session")
            watched = session.watched(args.site, args.direction)
            self.state.keep(args.keep, watched)
            read = (watched.reply.watch, watched.values, watched.positions)
            view = views.watch_view(*read, runs=watched.runs, hover=args.hover, session=session.name)
            self.state.screen.show(view)
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
