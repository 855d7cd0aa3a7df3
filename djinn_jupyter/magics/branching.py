"""Branches and sessions: fork, list, use, close, compare."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UnknownSession, UsageError
from djinn_jupyter.magics.lazily import naming, views
from djinn_jupyter.magics.parsing import KEEP, SESSION, Group, option, verb
from djinn_jupyter.magics.showing import line_of, residuals_of_both

if TYPE_CHECKING:
    from djinn_jupyter.client.session import RemoteSession


@magics_class
class BranchingMagics(Group):
    @verb(
        option("name", help="name of the new session"),
        option("--use", action="store_true", help="go on with the fork"),
        option("--fresh", action="store_true", help="in place of the session of that name, if there is one"),
        option("--force", action="store_true", help="--fresh: also in place of one of another notebook"),
        KEEP,
        SESSION,
    )
    def djinn_fork(self, args: Namespace) -> None:
        """A second session that stands where this one stands; each then goes its own way."""
        if args.force and not args.fresh:
            raise UsageError("--force belongs to --fresh: a fork takes no other session's name without it.")
        session = self.bench.session(args.session)
        if args.fresh:
            self._end(args.name, but=session, force=args.force)
        fork = self.bench.hold(session.fork(args.name))
        if session.name in self.bench.outcomes:
            self.bench.outcomes[fork.name] = self.bench.outcomes[session.name]
        if args.use:
            self.bench.use(fork)
        described = fork.describe()
        at = f" at {described.stopped_at}, step {described.step}" if described.stopped_at is not None else ""
        self.bench.keep(args.keep, fork)
        self.bench.screen.say(f"{fork.label} forked from {session.label}{at}; {self._in_use()}")

    def _end(self, name: str, *, but: RemoteSession, force: bool) -> None:
        """Close the session of that full name. One of another notebook is refused, unless `force`."""
        if name == but.name:
            raise UsageError(f"Session {but.label!r} cannot be forked into itself; choose another name.")
        names = {one.name for one in self.bench.engine.sessions()}
        if name not in names:
            return
        others = [full for full in names - {name} if naming.label(full) == naming.label(name)]
        if others:
            raise UsageError(f"{name!r} is also what {others[0]} is shown by; choose another name for the fork.")
        former = self.bench.to_close(name, force=force)
        former.close(force=force)
        self.bench.drop(former)

    @verb(KEEP)
    def djinn_tree(self, args: Namespace) -> None:
        """Draw the stops of all sessions as one tree: where each stands, and where forks began."""
        branches = self.bench.engine.tree()
        self.bench.keep(args.keep, branches)
        self.bench.screen.show(views.tree_view(branches, present=self.bench.present))

    @verb(KEEP)
    def djinn_sessions(self, args: Namespace) -> None:
        """All sessions of the engine, with who holds them."""
        engine = self.bench.engine
        sessions = engine.sessions()
        mine = {one.name for one in sessions if one.holder == engine.holder}
        self.bench.keep(args.keep, sessions)
        self.bench.screen.show(views.sessions_view(sessions, present=self.bench.present, mine=mine))

    @verb(
        option("name", nargs="?", help="a session; by default the one in use"),
        option("--new", action="store_true", help="make it, if there is none of that name"),
        option("--join", action="store_true", help="enter it even where another kernel holds it"),
        KEEP,
    )
    def djinn_use(self, args: Namespace) -> None:
        """Go on with another session. `-o NAME` gives the session itself, for Python."""
        if args.name is not None:
            self.bench.use(self._chosen(args.name, new=args.new, join=args.join))
        session = self.bench.session()
        self.bench.keep(args.keep, session)
        self.bench.screen.say(self._in_use())

    def _chosen(self, name: str, *, new: bool, join: bool) -> RemoteSession:
        try:
            return self.bench.find(name, join=join)
        except UnknownSession as unknown:
            if new:
                return self.bench.hold(self.bench.engine.session(name))
            raise UnknownSession(f"{unknown} To make it: %djinn_use {name} --new") from None

    def _in_use(self) -> str:
        present = self.bench.present
        return f"{naming.label(present)} is in use" if present is not None else "no session is in use"

    @verb(
        option("name", nargs="?", help="a session; by default the one in use"),
        option("--force", action="store_true", help="also the session of another notebook"),
    )
    def djinn_close(self, args: Namespace) -> None:
        """End a session and free what it holds. One of another notebook only with --force."""
        session = self.bench.to_close(args.name, force=args.force)
        pages = session.close(force=args.force)
        self.bench.drop(session)
        freed = f"{pages} page{'' if pages == 1 else 's'} freed"
        self.bench.screen.say(f"{session.label} closed, {freed}; {self._in_use()}")

    @verb(
        option("a", help="a session"),
        option("b", nargs="?", help="another; by default the one in use"),
        option("--layers", action="store_true", help="also the residuals of both passes, layer by layer"),
        KEEP,
    )
    def djinn_diff(self, args: Namespace) -> None:
        """Two sessions side by side: tokens, next token, and the stopped values where both stand at the same site."""
        second = args.b if args.b is not None else self.bench.session().name
        a, b = line_of(self.bench, args.a), line_of(self.bench, second)
        finished = [line.name for line in (a, b) if line.site is None]
        compared = args.layers and not finished
        positions, layers = residuals_of_both(self.bench, args.a, second) if compared else ((), None)
        self.bench.keep(args.keep, layers)
        self.bench.screen.show(views.diff_view(a, b, positions=positions, layers=layers))
        if args.layers and finished:
            ended = naming.label(finished[0])
            self.bench.screen.say(
                f"--layers compares two stopped passes and {ended} has finished: its residuals are gone. "
                f"Go back to one of its stops with %djinn_back --session {ended}."
            )
