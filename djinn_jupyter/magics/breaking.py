"""Breakpoints: set, list, clear."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.magics.parsing import KEEP, SESSION, Group, option, phrase, unquoted, verb
from djinn_jupyter.widgets import views


@magics_class
class BreakingMagics(Group):
    @verb(
        option("site", help="20 (the output of layer 20), resid_post.20, z.9[6], or a module path"),
        option("--when", nargs="+", metavar="EXPR", help='such as step == 0, token == " Paris", norm > 40'),
        option("--once", action="store_true", help="gone after its first hit"),
        KEEP,
        SESSION,
        literal=True,
    )
    def djinn_break(self, args: Namespace) -> None:
        """Stop the forward pass at a site, at every pass that meets it."""
        session = self.state.session(args.session)
        known = {point.number for point in session.breakpoints()}
        made = session.breakpoint(args.site, when=phrase(args.when), once=args.once)
        self.state.keep(args.keep, made)
        self.state.screen.say(views.breakpoint_line(made, existed=made.number in known))
        if made.note is not None:
            self.state.screen.say(made.note)

    @verb(KEEP, SESSION)
    def djinn_breaks(self, args: Namespace) -> None:
        """List the breakpoints of the session, with their hits."""
        session = self.state.session(args.session)
        points = session.breakpoints()
        self.state.keep(args.keep, points)
        self.state.screen.show(views.breakpoints_view(points, session=session.name))

    @verb(option("sites", nargs="*", type=unquoted, help="sites or numbers of breakpoints; none clears all"), SESSION)
    def djinn_clear(self, args: Namespace) -> None:
        """Clear breakpoints."""
        count = self.state.session(args.session).clear(*args.sites)
        self.state.screen.say(f"{count} breakpoint{'' if count == 1 else 's'} cleared")
