"""Keeping: where a session lives (device, host, disk, a file), and whether the weights are there."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import magics_class

from djinn_jupyter.client.engines import naming
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import KEEP, SESSION, Group, option, refuse_others, verb
from djinn_jupyter.magics.showing import outcome_view
from djinn_jupyter.widgets import views

if TYPE_CHECKING:
    from djinn_jupyter.client.engine import RemoteEngine

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
        """Move what a session holds off the device, or back. It comes back by itself when it is next needed."""
        if args.disk and args.way == "in":
            raise UsageError("--disk says where a session goes: it belongs to %djinn_swap out.")
        session = self.state.session(args.session)
        out = args.way == "out"
        moved = session.swap_out("disk" if args.disk else "host") if out else session.swap_in()
        self.state.keep(args.keep, moved)
        self.state.screen.say(views.swapped_line(session.name, moved, out=out))

    @verb(
        option("seconds", type=float, help="when it will be used again"),
        KEEP,
        SESSION,
    )
    def djinn_rest(self, args: Namespace) -> None:
        """Say when the session will be used again: it leaves the device for a long rest, and is back in time."""
        session = self.state.session(args.session)
        leaves = session.rest(args.seconds)
        self.state.keep(args.keep, leaves)
        self.state.screen.say(views.rest_line(session.name, args.seconds, leaves=leaves))

    @verb(WAKE, KEEP)
    def djinn_sleep(self, args: Namespace) -> None:
        """The weights leave the device until a session needs them. Refused while one runs."""
        self._sleep(args)

    @verb(WAKE, KEEP)
    def djinn_nap(self, args: Namespace) -> None:
        """The former name of %djinn_sleep."""
        self._sleep(args)

    def _sleep(self, args: Namespace) -> None:
        engine = self.state.engine
        moved = engine.wake() if args.wake else engine.sleep()
        self.state.keep(args.keep, moved)
        self.state.screen.say(views.sleep_line(engine.description.name, moved))

    @verb(
        option("name", nargs="?", help="what to call it; without a name, the checkpoints are listed"),
        option("--replace", action="store_true", help="in place of the checkpoint of that name"),
        option("--drop", action="store_true", help="delete the checkpoint of that name instead"),
        KEEP,
        SESSION,
    )
    def djinn_checkpoint(self, args: Namespace) -> None:
        """Keep the session as it stands, in a file that outlives kernels and engines."""
        if args.name is None:
            if args.drop or args.replace:
                raise UsageError("Which one? Write the name of a checkpoint; %djinn_checkpoint alone lists them.")
            refuse_others(args, "the list of checkpoints", "keep")
            kept = self.state.engine.checkpoints()
            self.state.keep(args.keep, kept)
            self.state.screen.show(views.checkpoints_view(kept, kept.left_out))
        elif args.drop:
            refuse_others(args, "--drop", "name")
            self.state.engine.drop_checkpoint(args.name)
            self.state.screen.say(f"checkpoint {args.name} deleted")
        else:
            saved = self.state.session(args.session).checkpoint(args.name, replace=args.replace)
            self.state.keep(args.keep, saved)
            self.state.screen.say(views.saved_line(saved))

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
        """Go back to a checkpoint. What the session holds now is left behind, unless it is restored --as another."""
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
        """Move a session to another engine of the same model, as it stands.
        This notebook goes along with the session in use."""
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
        """Take note that a recovery ran tokens of the session again: from now on it counts as exact."""
        session = self.state.session(args.session)
        if session.describe().exactness != "recomputed":
            raise UsageError(f"Session {naming.label(session.name)} is exact: there is nothing to accept.")
        session.accept_recomputed()
        self.state.screen.say(f"{session.label} counts as exact from now on")


def _place(engine: RemoteEngine) -> str:
    named = engine.description.name if engine.entry is None else engine.entry.named
    return named[:1].lower() + named[1:]
