"""Changing: edit the stopped value, set steering rules and breakpoints."""

from __future__ import annotations

from argparse import Namespace
from typing import Literal

from IPython.core.magic import magics_class

from djinn_jupyter.api.edits import EXAMPLES, KINDS
from djinn_jupyter.api.names import labelled
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.editing import edited_by_code, parse_edit
from djinn_jupyter.magics.looking import effect_asked, effect_of, outcome_view
from djinn_jupyter.magics.parsing import (
    EFFECT,
    KEEP,
    POSITIONS,
    SESSION,
    TOKEN,
    Group,
    option,
    phrase,
    refuse_others,
    unquoted,
    verb,
)
from djinn_jupyter.widgets import views

EDIT = option("edit", nargs="*", default=[], help=f"{EXAMPLES}; a VECTOR is a variable or an expression without spaces")
EDIT_OPTIONS = tuple(
    option(one.flag, metavar=one.metavar, help=f"{name}: {one.help}", type=unquoted if one.type is str else one.type)
    for name, kind in KINDS.items()
    for one in kind.options
)
ON = option("--on", type=int, metavar="N", help="turn number N on again")
ON_OR_PASSES = option(
    "--on",
    metavar="prompt|new|N",
    help="prompt or new: only in passes over the prompt, or over new tokens; N: turn rule N on again",
)
STANDING_POSITIONS = option(
    "--positions",
    metavar="P",
    help='such as -1 (of each pass), 0,4, 2:5 (its end excluded), 5: (all from 5 on), last, or a token, " Paris"; '
    "default all",
)
OFF = option("--off", type=int, metavar="N", help="turn number N off, without ending it")


@magics_class
class ChangingMagics(Group):
    @verb(
        EDIT,
        *EDIT_OPTIONS,
        POSITIONS,
        option("--site", metavar="SITE", help="the stopped site with a selector, such as z.9[6]"),
        EFFECT,
        TOKEN,
        option("--revert", action="store_true", help="undo all edits of this stop"),
        ON,
        OFF,
        option("--torch", action="store_true", help="cell: h is a torch tensor; this kernel must have torch already"),
        KEEP,
        SESSION,
        cell=True,
    )
    def djinn_edit(self, args: Namespace, cell: str | None = None) -> None:
        """Change the stopped value. As a cell: Python that changes the array `h`, run in this kernel."""
        session, asked = self.state.session(args.session), effect_asked(args)
        number, enabled = _switched(args)
        if args.revert or number is not None:
            if args.edit or cell is not None or (args.revert and number is not None):
                raise UsageError("--revert, --on and --off stand alone: they undo or switch edits that were made.")
            refuse_others(args, "--revert" if args.revert else _switch(args), "effect", "measure", "keep", "session")
            stop = session.revert() if number is None else session.enable_edit(number, enabled)
            self.state.keep(args.keep, stop)
            view = outcome_view(stop, effect=asked)
            self.state.screen.show_stop(view, stop.reply.stop, self.state.engine.channel)
            return
        if cell is not None and args.edit:
            raise UsageError("Give the edit once: as words on the line, or as Python in the cell.")
        if cell is None and args.torch:
            raise UsageError("--torch belongs to the cell form, %%djinn_edit.")
        if cell is None:
            edit = parse_edit(self.state, args.edit, args)
        else:
            refuse_others(args, "a cell", "site", "positions", "effect", "measure", "torch", "keep", "session")
            edit = edited_by_code(
                self.state, session, cell, site=args.site, positions=args.positions, use_torch=args.torch
            )
        edited = session.edit(edit, args.positions, args.site)
        self.state.keep(args.keep, edited)
        self.state.screen.show(views.edit_view(edited, session.stop.reply, effect_of(session, asked)))

    @verb(
        option("site", nargs="?", help="where; without a site, the rules are listed"),
        EDIT,
        *EDIT_OPTIONS,
        STANDING_POSITIONS,
        option("--when", nargs="+", metavar="EXPR", help='where it holds: token == " Paris", norm > 40, step > 2'),
        ON_OR_PASSES,
        OFF,
        KEEP,
        SESSION,
    )
    def djinn_steer(self, args: Namespace) -> None:
        """A steering rule: apply an edit at every pass until %djinn_unsteer. `resid_post.*` is every layer."""
        session = self.state.session(args.session)
        passes = _passes(args)
        number, enabled = _switched(args)
        if number is not None:
            if args.site is not None:
                raise UsageError("--on and --off stand alone: they switch a rule that was set.")
            refuse_others(args, _switch(args), "keep", "session")
            switched = session.enable_rule(number, enabled)
            said = f"rule {number} is {'on' if enabled else 'off'}: {labelled(switched.what)}"
            self.keep_and_show(args, switched, said)
            return
        if args.site is None:
            refuse_others(args, "the list of rules", "keep", "session")
            rules = session.rules()
            self.keep_and_show(args, rules, views.rules_view([rule.reply for rule in rules], session=session.name))
            return
        edit = parse_edit(self.state, args.edit, args)
        rule = session.steer(args.site, edit, args.positions, when=phrase(args.when), on=passes)
        self.state.keep(args.keep, rule)
        limits = "".join(f", {limit}" for limit in rule.limits)
        said = f"rule {rule.number} at {labelled(rule.site)}: {' '.join(args.edit)}{_times(args.coef)}{limits}"
        self.state.screen.say(said)
        if rule.note is not None:
            self.state.screen.say(rule.note)

    @verb(option("number", nargs="?", type=int, help="the rule's number; without one, all rules end"), SESSION)
    def djinn_unsteer(self, args: Namespace) -> None:
        """End steering rules."""
        count = self.state.session(args.session).unsteer(args.number)
        self.state.screen.say(f"{count} steering rule{'' if count == 1 else 's'} ended")


def _passes(args: Namespace) -> Literal["prompt", "new"] | None:
    """Take the passes of --on; a number there stays as the rule to turn on."""
    said, args.on = args.on, None
    if said is None or said.isdecimal():
        args.on = None if said is None else int(said)
        return None
    if said == "prompt" or said == "new":
        return "prompt" if said == "prompt" else "new"
    raise UsageError(
        f"--on takes prompt or new, the passes of a rule, or the number of a rule to turn on; not {said!r}."
    )


def _switched(args: Namespace) -> tuple[int | None, bool]:
    """Return the number that --on or --off gave, and whether it was --on."""
    if args.on is not None and args.off is not None:
        raise UsageError("Give --on or --off, not both.")
    return (args.off, False) if args.on is None else (args.on, True)


def _switch(args: Namespace) -> str:
    return "--off" if args.off is not None else "--on"


def _times(coef: float | None) -> str:
    return "" if coef is None else f" (times {coef:g})"


# Breakpoints: set, list, clear.


@magics_class
class BreakingMagics(Group):
    @verb(
        option("site", help="20 (the output of layer 20), resid_post.20, z.9[6], or a module path"),
        option("--when", nargs="+", metavar="EXPR", help='such as step == 0, token == " Paris", norm > 40'),
        option("--once", action="store_true", help="gone after its first hit"),
        KEEP,
        SESSION,
    )
    def djinn_break(self, args: Namespace) -> None:
        """Stop the forward pass at a site, in every pass that reaches it."""
        session = self.state.session(args.session)
        known = {point.number for point in session.breakpoints()}
        made = session.breakpoint(args.site, when=phrase(args.when), once=args.once)
        self.keep_and_show(args, made, views.breakpoint_line(made, existed=made.number in known))
        if made.note is not None:
            self.state.screen.say(made.note)

    @verb(ON, OFF, KEEP, SESSION)
    def djinn_breaks(self, args: Namespace) -> None:
        """List the breakpoints of the session, with their hit counts, or turn one on or off."""
        session = self.state.session(args.session)
        number, enabled = _switched(args)
        if number is not None:
            switched = session.enable(number, enabled)
            said = f"breakpoint {number} is {'on' if enabled else 'off'}: {labelled(switched.site)}"
            self.keep_and_show(args, switched, said)
            return
        points = session.breakpoints()
        self.keep_and_show(args, points, views.breakpoints_view(points, session=session.name))

    @verb(option("sites", nargs="*", type=unquoted, help="sites or numbers of breakpoints; none clears all"), SESSION)
    def djinn_clear(self, args: Namespace) -> None:
        """Clear breakpoints."""
        count = self.state.session(args.session).clear(*args.sites)
        self.state.screen.say(f"{count} breakpoint{'' if count == 1 else 's'} cleared")
