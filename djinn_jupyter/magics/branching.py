"""Branches and sessions: fork, list, use, close, compare."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress

from IPython.core.magic import magics_class

from djinn_jupyter.api.closing import sessions_to_close
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UnknownSession, UsageError
from djinn_jupyter.link import naming
from djinn_jupyter.magics.changing import EDIT, EDIT_OPTIONS
from djinn_jupyter.magics.editing import parse_edit
from djinn_jupyter.magics.looking import compared, outcome_view, residuals_of_both, side_of
from djinn_jupyter.magics.parsing import KEEP, SESSION, Group, option, refuse_others, unquoted, verb
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.spelling import plural
from djinn_jupyter.wire.base import Access
from djinn_jupyter.wire.texts import MOST_NAMED, in_quotes


@magics_class
class BranchingMagics(Group):
    @verb(
        option("name", help="name of the new session"),
        option("--use", action="store_true", help="go on with the fork"),
        option("--fresh", action="store_true", help="in place of the session of that name, if there is one"),
        option("--force", action="store_true", help="--fresh: also in place of one of another notebook"),
        EDIT,
        *EDIT_OPTIONS,
        option("--site", metavar="SITE", help="of an edit: keys or values of the cache, as k_rot.5[0] or v.5"),
        option("--positions", metavar="P", help="of an edit: committed positions, such as 2, 0,4 or 2:5; default all"),
        KEEP,
        SESSION,
    )
    def djinn_fork(self, args: Namespace) -> None:
        """A second session in the state of this one; each then goes its own way.

        With an edit, such as `zero --site v.5[0] --positions 2`, the fork has other keys or values in its cache."""
        if args.force and not args.fresh:
            raise UsageError("--force belongs to --fresh: a fork takes no other session's name without it.")
        session = self.state.reach(args.session)
        edit = parse_edit(self.state, args.edit, args) if args.edit else None
        if not args.edit:
            refuse_others(
                args, "a fork without an edit", "name", "use", "fresh", "force", "site", "positions", "keep", "session"
            )
        if args.fresh:
            self._end(args.name, but=session, force=args.force)
        fork = self.state.hold(session.fork(args.name, edit=edit, site=args.site, positions=args.positions))
        if session.name in self.state.outcomes:
            self.state.outcomes[fork.name] = self.state.outcomes[session.name]
        if args.use:
            self.state.use(fork)
        described = fork.describe()
        at = f" at {described.stopped_at}, step {described.step}" if described.stopped_at is not None else ""
        self.state.keep(args.keep, fork)
        edited = f", with {' '.join(args.edit)} at {args.site} in its cache" if args.edit else ""
        self.state.screen.say(f"{fork.label} forked from {session.label}{at}{edited}; {self._in_use()}")

    def _end(self, name: str, *, but: RemoteSession, force: bool) -> None:
        """Close the session with that full name. One of another notebook is refused, unless `force`."""
        if name == but.name:
            raise UsageError(f"Session {in_quotes(but.label)} cannot be forked into itself; choose another name.")
        names = {one.name for one in self.state.engine.sessions()}
        if name not in names:
            return
        others = [full for full in names - {name} if naming.label(full) == naming.label(name)]
        if others:
            raise UsageError(
                f"{in_quotes(name)} is also what {others[0]} is shown by; choose another name for the fork."
            )
        former = self.state.reach(name)
        former.close(force=force)
        self.state.drop(former)

    @verb(KEEP)
    def djinn_tree(self, args: Namespace) -> None:
        """Draw the stops of all sessions as one tree: the present stop of each, and the beginnings of forks."""
        branches = self.state.engine.tree()
        self.keep_and_show(args, branches, views.tree_view(branches, present=self.state.present))

    @verb(KEEP)
    def djinn_sessions(self, args: Namespace) -> None:
        """All sessions of the engine, with their holders."""
        engine = self.state.engine
        sessions = engine.sessions()
        mine = {one.name for one in sessions if one.holder == engine.holder}
        self.keep_and_show(args, sessions, views.sessions_view(sessions, present=self.state.present, mine=mine))

    @verb(
        option("name", nargs="?", help="a session; by default the one in use"),
        option("--new", action="store_true", help="make it, if there is none of that name"),
        option("--join", action="store_true", help="enter it even where another kernel holds it"),
        option(
            "--attention",
            choices=("eager", "sdpa"),
            help="eager: its passes alone compute attention so, and `pattern` can be stopped at and edited there",
        ),
        option("--adapter", metavar="NAME", help="one that was added: its passes alone compute with it"),
        KEEP,
    )
    def djinn_use(self, args: Namespace) -> None:
        """Continue with another session. `-o NAME` gives the session itself, for Python."""
        if args.name is None and (args.new or args.join):
            raise UsageError("--new and --join are of a session by its name: write that too.")
        made = args.name is not None and self._enter(args.name, new=args.new, join=args.join)
        session = self.state.session()
        if args.attention is not None:
            session.attend(args.attention)
        if args.adapter is not None:
            session.adapter = args.adapter
        self.state.keep(args.keep, session)
        there = f"; it was there already ({session.describe().state})" if args.new and not made else ""
        self.state.screen.say(f"{self._in_use()}{there}")

    def _enter(self, name: str, *, new: bool, join: bool) -> bool:
        """Make the session of this name the one in use; return whether it was created."""
        try:
            self.state.use(self.state.find(name, join=join))
        except UnknownSession as unknown:
            if not new:
                raise UnknownSession(f"{unknown} To make it: %djinn_use {name} --new") from None
            self.state.use(self.state.hold(self.state.engine.session(name)))
            return True
        return False

    def _in_use(self) -> str:
        present = self.state.present
        return f"{naming.label(present)} is in use" if present is not None else "no session is in use"

    @verb(
        option(
            "names",
            nargs="*",
            help="sessions, or patterns of your sessions' names, such as italy*; default the one in use",
        ),
        option("--force", action="store_true", help="also sessions of other notebooks; patterns then match those too"),
    )
    def djinn_close(self, args: Namespace) -> None:
        """End sessions, with the rows of their batches. Sessions of other notebooks need --force."""
        names = [unquoted(name) for name in args.names] or [self.state.session().name]
        meant = sessions_to_close(self.state.engine.channel, names, force=args.force)
        closed, pages = dict[str, list[str]](), 0
        try:
            for name, rows in meant.items():
                pages += self._close(name, force=args.force)
                closed[name] = []
                for row in rows:
                    pages += self._close(row, force=args.force)
                    closed[name].append(row)
        finally:
            if closed:
                freed = f"{pages} page{'' if pages == 1 else 's'} freed"
                self.state.screen.say(f"{closed_line(closed)} closed, {freed}; {self._in_use()}")

    def _close(self, name: str, *, force: bool) -> int:
        """Close a session, and return the pages freed: 0 where another client has closed it meanwhile."""
        session = self.state.held.get(name) or self.state.engine.reach(name)
        pages = 0
        with suppress(UnknownSession):
            pages = session.close(force=force)
        self.state.drop(session)
        return pages

    @verb(
        option("name", nargs="?", help="a session; by default the one in use"),
        option("--with", dest="person", required=True, metavar="PERSON", help="as the engine's user has admitted them"),
        option("--read", action="store_true", help="they inspect it, hear its events and fork it"),
        option("--write", action="store_true", help="they also run and edit it, but not close, share or empty it"),
        option("--none", action="store_true", help="neither, from now on"),
    )
    def djinn_share(self, args: Namespace) -> None:
        """Share a session with another person of the engine, who calls it OWNER@NAME."""
        if args.read + args.write + args.none != 1:
            raise UsageError("Say one of --read, --write and --none.")
        session = self.state.reach(args.name)
        access: Access | None = "read" if args.read else "write" if args.write else None
        described = session.share(args.person, access)
        if access is None:
            self.state.screen.say(f"{session.label} is not shared with {args.person}")
            return
        reached = f"{described.owner}@{described.name}"
        self.state.screen.say(f"{session.label} is shared with {args.person}, to {access}, as {in_quotes(reached)}")

    @verb(
        option("a", help="a session"),
        option("b", nargs="?", help="another; by default the one in use"),
        option("--layers", action="store_true", help="also the residuals of both passes, layer by layer"),
        KEEP,
    )
    def djinn_diff(self, args: Namespace) -> None:
        """Two sessions side by side: tokens, next token, and the stopped values where both stand at one site."""
        second = args.b if args.b is not None else self.state.session().name
        a, b = side_of(self.state, args.a), side_of(self.state, second)
        finished = [line.name for line in (a, b) if line.site is None]
        by_layer = args.layers and not finished
        positions, layers = residuals_of_both(self.state, args.a, second) if by_layer else ((), None)
        if args.keep is not None and layers is None:
            raise UsageError("-o keeps the residuals that --layers compares, of two stopped passes.")
        self.state.keep(args.keep, layers)
        apart = compared(self.state, a, b)
        self.state.screen.show(views.diff_view(a, b, compared=apart, positions=positions, layers=layers))
        if args.layers and finished:
            ended = naming.label(finished[0])
            self.state.screen.say(
                f"--layers compares two stopped passes and {ended} has finished: its residuals are gone. "
                f"Go back to one of its stops with %djinn_back --session {ended}."
            )


def closed_line(closed: Mapping[str, Sequence[str]]) -> str:
    """Spell closed sessions with the counts of their rows: `paris with 40 rows, rome`."""
    shown = naming.distinct_labels(closed)
    told = [shown[name] + (f" with {plural(len(rows), 'row')}" if rows else "") for name, rows in closed.items()]
    more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return ", ".join(told[:MOST_NAMED]) + more


# Keeping: the place of a session (device, host, disk, a file) and of the weights.

WAKE = option("--wake", action="store_true", help="bring the weights back now")


@magics_class
class KeepingMagics(Group):
    @verb(
        option("way", choices=("out", "in"), help="`out` of the device, or back `in`"),
        option("--disk", action="store_true", help="out: to the disk instead of the host's memory"),
        KEEP,
        SESSION,
    )
    def djinn_swap(self, args: Namespace) -> None:
        """Move a session's memory off the device, or back. It returns by itself when it is next needed."""
        if args.disk and args.way == "in":
            raise UsageError("--disk says where a session goes: it belongs to %djinn_swap out.")
        session = self.state.session(args.session)
        out = args.way == "out"
        moved = session.swap_out("disk" if args.disk else "host") if out else session.swap_in()
        self.keep_and_show(args, moved, views.swapped_line(session.name, moved, out=out))

    @verb(option("seconds", type=float, help="when it will be used again"), KEEP, SESSION)
    def djinn_rest(self, args: Namespace) -> None:
        """Say when the session will be used again: for a long rest it leaves the device, and it returns in time."""
        session = self.state.session(args.session)
        leaves = session.rest(args.seconds)
        self.keep_and_show(args, leaves, views.rest_line(session.name, args.seconds, leaves=leaves))

    @verb(WAKE, KEEP)
    def djinn_sleep(self, args: Namespace) -> None:
        """Move the weights off the device until a session needs them. Refused while one runs."""
        self._sleep(args)

    @verb(WAKE, KEEP)
    def djinn_nap(self, args: Namespace) -> None:
        """The former name of %djinn_sleep."""
        self._sleep(args)

    def _sleep(self, args: Namespace) -> None:
        engine = self.state.engine
        moved = engine.wake() if args.wake else engine.sleep()
        self.keep_and_show(args, moved, views.sleep_line(engine.description.name, moved))

    @verb(
        option("name", nargs="?", help="what to call it; without a name, the checkpoints are listed"),
        option("--replace", action="store_true", help="in place of the checkpoint of that name"),
        option("--drop", action="store_true", help="delete the checkpoint of that name instead"),
        KEEP,
        SESSION,
    )
    def djinn_checkpoint(self, args: Namespace) -> None:
        """Save the session's state in a file that outlives kernels and engines."""
        if args.name is None:
            if args.drop or args.replace:
                raise UsageError("Which one? Write the name of a checkpoint; %djinn_checkpoint alone lists them.")
            refuse_others(args, "the list of checkpoints", "keep")
            kept = self.state.engine.checkpoints()
            self.keep_and_show(args, kept, views.checkpoints_view(kept, kept.left_out))
        elif args.drop:
            refuse_others(args, "--drop", "name")
            self.state.engine.drop_checkpoint(args.name)
            self.state.screen.say(f"checkpoint {args.name} deleted")
        else:
            saved = self.state.session(args.session).checkpoint(args.name, replace=args.replace)
            self.keep_and_show(args, saved, views.saved_line(saved))

    @verb(
        option("name", help="a checkpoint, or the path of its file"),
        option("--as", dest="other", metavar="NAME", help="as another session, beside the one in use"),
        option("--replace", action="store_true", help="--as: in place of the session of that name"),
        option("--use", action="store_true", help="--as: go on with that session"),
        option("--force", action="store_true", help="also over the session of another notebook"),
        KEEP,
        SESSION,
    )
    def djinn_restore(self, args: Namespace) -> None:
        """Go back to a checkpoint. The session's present state is lost, unless it is restored --as another."""
        if args.other is None:
            if args.replace or args.use:
                raise UsageError("--replace and --use belong to --as NAME; without it the session in use goes back.")
            session = self.state.session(args.session)
            session.restore(args.name, force=args.force)
        else:
            if args.session is not None:
                raise UsageError("Name the session once: with --session the one that goes back, with --as a new one.")
            restored = self.state.engine.restore(args.name, args.other, replace=args.replace, force=args.force)
            session = self.state.hold(restored)
            if args.use:
                self.state.use(session)
        self.state.outcomes.pop(session.name, None)
        self.state.keep(args.keep, session)
        described = session.describe()
        self.state.screen.say(f"{session.label} restored from {args.name}: {views.armed(described)}")
        if described.state == "paused":
            self.state.screen.show(outcome_view(session.stop))

    @verb(
        option(
            "--to",
            required=True,
            metavar="ENGINE",
            help="its address, the number of a copy of this engine, or a machine of its cluster",
        ),
        option("--force", action="store_true", help="also a session of another notebook"),
        KEEP,
        SESSION,
    )
    def djinn_move(self, args: Namespace) -> None:
        """Move a session to another engine of the same model, in its present state.
        This notebook follows the session in use."""
        session, in_use = self.state.reach(args.session), self.state.present
        engine = self.state.client.beside(self.state.engine, args.to, progress=self.state.screen.say)
        moved = session.move(engine, force=args.force)
        if session.name == in_use:
            self.state.load(engine, moved)
        else:
            self.state.drop(session)
        self.state.keep(args.keep, moved)
        along = "; this notebook goes on with it there" if session.name == in_use else ""
        self.state.screen.say(f"{moved.label} moved to {_place(engine)}{along}")

    @verb(SESSION)
    def djinn_accept(self, args: Namespace) -> None:
        """Acknowledge that a recovery ran tokens of the session again: from now on it counts as exact."""
        session = self.state.session(args.session)
        if session.describe().exactness != "recomputed":
            raise UsageError(f"Session {naming.label(session.name)} is exact: there is nothing to accept.")
        session.accept_recomputed()
        self.state.screen.say(f"{session.label} counts as exact from now on")


def _place(engine: RemoteEngine) -> str:
    named = engine.description.name if engine.entry is None else engine.entry.named
    return named[:1].lower() + named[1:]
