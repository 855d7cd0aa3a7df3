"""The engine and the session that launch and attach name: started, found or chosen. Knows no threads."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from djinn_jupyter.client import loading
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.engines.registry import running_engines
from djinn_jupyter.client.engines.spelling import spell_model
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.dap import arguments
from djinn_jupyter.dap.tree import ModelTree
from djinn_jupyter.described import chosen
from djinn_jupyter.errors import EngineUnavailable, UnknownSession, UsageError
from djinn_jupyter.options import GivenOptions
from djinn_jupyter.wire.names import label, told_apart
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.texts import in_quotes

Target = tuple[RemoteEngine, ModelTree, RemoteSession]


def launched(plan: arguments.Launch, progress: Callable[[str], None]) -> Target:
    """Load the model, or find its engine, and open a session."""
    engine = loading.load(plan.model, **chosen(GivenOptions, plan), progress=progress)
    name = plan.session or f"dap-{uuid.uuid4().hex[:8]}"
    if not plan.fresh and name in {one.name for one in engine.sessions()}:
        raise UsageError(
            f"There is a session {in_quotes(name)} already: attach to it, or launch with `fresh` to begin it anew."
        )
    return (
        engine,
        ModelTree(engine.description, engine.modules()),
        engine.session(name, fresh=plan.fresh, force=plan.force),
    )


def attached(plan: arguments.Attach) -> Target:
    """Return a session of a running engine."""
    engine = loading.attach(chosen_engine(plan))
    return engine, ModelTree(engine.description, engine.modules()), _chosen_session(engine, plan.session)


def chosen_engine(plan: arguments.Attach) -> Entry:
    """Return the running engine that matches; EngineUnavailable when none does, UsageError when several do."""
    fitting = [entry for entry in running_engines() if _means(plan, entry)]
    if not fitting:
        raise EngineUnavailable("attach: no such engine runs; `djinn list` shows those that do.")
    if len(fitting) > 1:
        known = ", ".join(f"{entry.identity} (pid {entry.pid})" for entry in fitting)
        raise UsageError(f"attach: several engines run: {known}; name one by `model` or `pid`.")
    return fitting[0]


def _means(plan: arguments.Attach, entry: Entry) -> bool:
    if plan.pid is not None and entry.pid != plan.pid:
        return False
    names = (entry.identity.model, entry.found.model, Path(entry.identity.model).name, str(entry.identity))
    return plan.model is None or plan.model in names or spell_model(plan.model) in names


def _chosen_session(engine: RemoteEngine, wanted: str | None) -> RemoteSession:
    shown = told_apart(one.name for one in engine.sessions())
    fitting = [n for n in shown if n == wanted] or [n for n in shown if wanted in (None, shown[n], label(n))]
    if len(fitting) == 1:
        return RemoteSession(engine.channel, fitting[0])
    known = ", ".join(shown.values()) or "none"
    asked = "there is no such session" if not fitting else "name the `session`"
    raise UnknownSession(f"attach: {asked}; there are: {known}.")
