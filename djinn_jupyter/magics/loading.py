"""The engine: load, unload, stop, status, log."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.link import naming, spelling
from djinn_jupyter.magics.parsing import KEEP, Group, option, refuse_others, verb
from djinn_jupyter.settings import GivenOptions, add_flags, chosen
from djinn_jupyter.wire.logs import with_older

if TYPE_CHECKING:
    from djinn_jupyter.wire.nouns import SessionDescription


@magics_class
class LoadingMagics(Group):
    @verb(
        option("model", help="`demo`, a folder, or a hub name"),
        *add_flags(option, GivenOptions),
        option(
            "--at",
            metavar="HOST[:PORT]",
            help="attach to the engine that `djinn serve` runs on another machine;"
            " ssh://HOST starts it there, hub is that of your JupyterHub, cluster that of your Ray cluster",
        ),
        option("--key", metavar="NAME", help="--at: which of your keys, or its file; by default the only one"),
        option("--session", metavar="NAME", help="name of the session; by default this notebook's"),
        option("--join", action="store_true", help="enter the session even where another kernel holds it"),
        option("--fresh", action="store_true", help="forget what the session holds: tokens, breakpoints, rules, stops"),
        option("--force", action="store_true", help="--fresh: also what the session of another notebook holds"),
        KEEP,
    )
    def djinn_load(self, args: Namespace) -> None:
        """Start the engine of a model, or attach to it where it already runs; open this notebook's session."""
        name = args.session or naming.default_session_name()
        live = self.state.screen.live()
        with live.loading(args.model):
            engine = self.state.client.load(
                args.model,
                progress=live.progress,
                each_second=live.second,
                **{name: given for name in ("at", "key") if (given := getattr(args, name)) is not None},
                **chosen(GivenOptions, args),
            )
            if args.at is None and (passed_over := spelling.folder_passed_over(args.model)) is not None:
                self.state.screen.say(passed_over)
            there = engine.sessions()
            found = naming.called(name, [one.name for one in there]) if args.join else []
            name = found[0] if len(found) == 1 else name
            session = engine.session(name, join=args.join, fresh=args.fresh, force=args.force)
        from djinn_jupyter.widgets import views  # not before the line about the load

        self.state.load(engine, session)
        self.state.keep(args.keep, engine)
        described = session.describe()
        weights, named = engine.statistics().weights, not self.state.screen.is_static
        told = {"names_device": named, "no_sidebar": named and self.state.take_sidebar_hint()}
        with self.state.with_names():
            live.end(views.loaded_view(engine.description, described, weights, **told))
        if not args.fresh and all(one.name != described.name for one in there):
            self._tell_of_a_rename(described, there)

    def _tell_of_a_rename(self, described: SessionDescription, there: Iterable[SessionDescription]) -> None:
        """Name the former session of a renamed notebook where this one has just been made: it begins empty, and its
        work has the former name."""
        from djinn_jupyter.widgets import views

        shown = naming.distinct_labels((described.name, *(one.name for one in there)))
        for former in _former(there, beside=described.name, holder=self.state.engine.holder):
            held, name = views.armed(former), shown[former.name]
            self.state.screen.say(
                f"session {name} ({held}) is of a notebook of this folder that is not there any "
                f"more; if this one was renamed: %djinn_use {name}"
            )

    @verb()
    def djinn_unload(self, args: Namespace) -> None:
        """Release the model and this notebook's sessions. Engine and sessions live on."""
        name = self.state.engine.description.name
        self.state.leave()
        self.state.screen.say(f"{name} unloaded from this notebook; its sessions stay in the engine")

    @verb(
        option("--force", action="store_true", help="also when other notebooks have sessions in it"),
        option("--forget", action="store_true", help="its sessions do not come back"),
    )
    def djinn_stop(self, args: Namespace) -> None:
        """End the engine; its sessions return when the model is loaded again, except with --forget.
        It is refused while other notebooks have sessions, except with --force."""
        engine = self.state.engine
        lost = engine.stop(force=args.force, forget=args.forget)
        self.state.forget()
        ended = ", ".join(sorted(naming.label(name) for name in lost))
        said = f"engine of {engine.description.name} stopped"
        self.state.screen.say(f"{said}; ended with it: {ended}" if ended else said)

    @verb(KEEP)
    def djinn_status(self, args: Namespace) -> None:
        """The engine's statistics: model, self-test, sessions, work done, memory."""
        engine = self.state.engine
        statistics = engine.statistics()
        session = self.state.session().describe() if self.state.present is not None else None
        self.state.keep(args.keep, statistics)
        from djinn_jupyter.link import registry
        from djinn_jupyter.widgets import views

        methods = registry.method_lines(engine.channel.welcome)
        self.state.screen.show(
            views.status_view(engine.description, statistics, session, engine.added_modules(), methods)
        )

    @verb(
        option("lines", nargs="?", type=int, default=20, help="how many of the last lines; default 20"),
        option("--request", metavar="ID", help="all lines of a request, whose id its error told"),
    )
    def djinn_log(self, args: Namespace) -> None:
        """The last lines of the engine's log, or those of a request."""
        from djinn_jupyter.link import registry

        entry = self.state.engine.entry
        if entry is not None and entry.is_afar:
            raise UsageError(f"The log of this engine is on {entry.place}: its user reads it there, with `djinn log`.")
        if entry is None or entry.log is None:
            raise UsageError("This engine writes no log file.")
        if args.request is not None:
            refuse_others(args, "--request")
            found = registry.lines_of_request(with_older(registry.log_of(entry)), args.request)
            return self.state.screen.say("\n".join(found))
        if args.lines < 1:
            raise UsageError("A log has at least one line to show: write %djinn_log 20.")
        self.state.screen.say(registry.last_lines(registry.log_of(entry), args.lines))


def _former(sessions: Iterable[SessionDescription], *, beside: str, holder: str) -> Iterator[SessionDescription]:
    """Yield the sessions that this notebook may have had under a former name: this kernel holds them, or the outputs
    that it was saved with name them. To other notebooks of the folder they are nothing."""
    gone = _without_notebook(sessions, beside=beside)
    saved = _saved(Path(beside)) if gone else ""
    for one in gone:
        if one.holder == holder or _names(saved, naming.label(one.name)):
            yield one


def _saved(notebook: Path) -> str:
    try:
        return notebook.read_text(errors="replace")
    except OSError:
        return ""


def _names(saved: str, label: str) -> bool:
    """Return whether the outputs of a saved notebook name a session, as cards do: `session paris`."""
    spelled = {json.dumps(text, ensure_ascii=False)[1:-1] for text in (label, escape(label, quote=False))}
    return any(re.search(rf"\bsession {re.escape(text)}(?![\w-])", saved) for text in spelled)


def _without_notebook(sessions: Iterable[SessionDescription], *, beside: str) -> list[SessionDescription]:
    """Return the sessions with tokens whose notebooks, in the same folder, no longer exist."""
    here = Path(beside)
    return [
        one
        for one in sessions
        if one.tokens and one.name.endswith(here.suffix) and here.is_absolute() and here.suffix
        if Path(one.name).parent == here.parent and one.name != beside and not Path(one.name).exists()
    ]
