"""Looking: inspect a site, read the logit lens, watch a site over many passes."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.lazily import views
from djinn_jupyter.magics.parsing import KEEP, POSITIONS, SESSION, Group, option, unquoted, verb
from djinn_jupyter.magics.showing import lens_by_layer, look_of

HOVER = option("--hover", action="store_true", help="as a plotly figure, to read values under the pointer")


@magics_class
class LookingMagics(Group):
    @verb(
        option("site", nargs="?", help="a site; by default the stopped one"),
        POSITIONS,
        option(
            "--ahead", action="store_true", help="also where the pass has not been: finish it without edits, to look"
        ),
        HOVER,
        KEEP,
        SESSION,
    )
    def djinn_inspect(self, args: Namespace) -> None:
        """Look at a value of the stopped pass; `-o NAME` keeps it, `NAME.value` is numpy."""
        session = self.bench.session(args.session)
        snapshot = session.inspect(args.site, args.positions, ahead=args.ahead)
        self.bench.keep(args.keep, snapshot)
        self.bench.screen.show(views.snapshot_view(look_of(session, snapshot), hover=args.hover))

    @verb(
        option("site", nargs="?", help="a residual site; by default the stopped one"),
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
            help='--layers: follow this token instead, such as " Paris"; repeatable',
        ),
        KEEP,
        SESSION,
    )
    def djinn_lens(self, args: Namespace) -> None:
        """The logit lens: what the model would say if it ended at this site."""
        session = self.bench.session(args.session)
        if args.layers:
            if args.site is not None:
                raise UsageError("--layers reads every layer that has run: leave the site out.")
            by_layer = lens_by_layer(session, args.positions, args.token)
            self.bench.keep(args.keep, by_layer)
            self.bench.screen.show(views.lens_grid_view(by_layer))
            return
        if args.token:
            raise UsageError("--token belongs to --layers: it follows a token's probability from layer to layer.")
        lens = session.lens(args.k, args.site, args.positions)
        self.bench.keep(args.keep, lens)
        self.bench.screen.show(views.lens_view(lens.site, lens.rows))

    @verb(
        option("site", nargs="?", help="a site; without one, the watches are listed"),
        option("--show", action="store_true", help="show what was recorded; with -o NAME, NAME.values is numpy"),
        option("--fresh", action="store_true", help="forget what it recorded so far, and go on"),
        option("--off", action="store_true", help="end the watch and forget what it recorded; without a site, all"),
        HOVER,
        KEEP,
        SESSION,
    )
    def djinn_watch(self, args: Namespace) -> None:
        """Record a site at every pass of every run, without stopping, until --off."""
        session = self.bench.session(args.session)
        if args.off:
            count = session.unwatch(args.site)
            self.bench.screen.say(f"{count} watch{'' if count == 1 else 'es'} ended")
        elif args.site is None:
            self.bench.screen.show(views.watches_view(session.describe().watches))
        elif args.show or args.hover:
            watched = session.watched(args.site)
            self.bench.keep(args.keep, watched)
            view = views.watch_view(
                watched.reply.watch, watched.values, watched.positions, runs=watched.runs, hover=args.hover
            )
            self.bench.screen.show(view)
        else:
            watch = session.watch(args.site, fresh=args.fresh)
            self.bench.keep(args.keep, watch)
            self.bench.screen.say(f"watching {watch.site} at every pass; %djinn_watch {watch.site} --show shows it")
