"""Commands that begin and end debugging: initialize, launch or attach, breakpoints, configurationDone, terminate,
disconnect."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from djinn_jupyter.client import loading
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.engines.registry import running_engines
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.stops import Stop
from djinn_jupyter.dap import arguments, moving
from djinn_jupyter.dap.breakpoints import Kind, Wanted, refused
from djinn_jupyter.dap.capabilities import CAPABILITIES
from djinn_jupyter.dap.conversation import Asked
from djinn_jupyter.dap.followed import Followed, state_of
from djinn_jupyter.dap.tree import ModelTree
from djinn_jupyter.described import chosen
from djinn_jupyter.errors import DjinnError, EngineUnavailable, IllegalMove, UnknownSession, UsageError
from djinn_jupyter.options import GivenOptions
from djinn_jupyter.sampling import GivenSampling
from djinn_jupyter.wire.names import label, told_apart
from djinn_jupyter.wire.registry import Entry

if TYPE_CHECKING:
    from djinn_jupyter.dap.adapter import Adapter

Body = Mapping[str, Any]
Opened = tuple[RemoteEngine, ModelTree, RemoteSession]


def initialize(adapter: Adapter, asked: Asked) -> Body:
    adapter.client = arguments.read(arguments.Initialize, asked.command, asked.arguments)
    return CAPABILITIES


def launch(adapter: Adapter, asked: Asked) -> None:
    """Load the model, or find its engine, and open a session; its run starts at configurationDone."""
    plan: arguments.Launch = arguments.read(arguments.Launch, asked.command, asked.arguments)
    if (plan.prompt is None) == (plan.tokens is None):
        raise UsageError("launch: give the prompt once, as `prompt` or as a list `tokens`.")
    _set_about(adapter, asked, plan, lambda: _launched(adapter, plan))


def attach(adapter: Adapter, asked: Asked) -> None:
    """Attach to a session of a running engine."""
    plan: arguments.Attach = arguments.read(arguments.Attach, asked.command, asked.arguments)
    _set_about(adapter, asked, plan, lambda: _attached(plan))


def _set_about(
    adapter: Adapter, asked: Asked, plan: arguments.Launch | arguments.Attach, job: Callable[[], Opened]
) -> None:
    if adapter.plan is not None:
        raise IllegalMove("This conversation debugs something already; start another one.")
    adapter.plan = plan

    def opened(outcome: Opened | DjinnError) -> None:
        if isinstance(outcome, DjinnError):
            adapter.plan = None
            adapter.conversation.refuse(asked, outcome)
            return
        _work_with(adapter, *outcome)
        for name in arguments.passed_over(type(plan), asked.arguments):
            adapter.conversation.write(f"{asked.command}: {name!r} means nothing here and was passed over.\n", "stderr")
        adapter.conversation.respond(asked)
        adapter.conversation.tell("initialized")

    adapter.work(job, opened)


def _work_with(adapter: Adapter, engine: RemoteEngine, tree: ModelTree, session: RemoteSession) -> None:
    adapter.follow(Followed(number=adapter.first_thread, session=session))
    adapter.work_with(engine, tree, lambda event: moving.hear(adapter, event))
    states = {one.name: one for one in engine.sessions()}
    if adapter.follows_all:
        for name in sorted(states.keys() - {session.name}):
            moving.follow(adapter, name)
    for one in adapter.followed.values():
        if one.name in states:
            one.state = state_of(states[one.name])


def _launched(adapter: Adapter, plan: arguments.Launch) -> Opened:
    engine = loading.load(
        plan.model,
        **chosen(GivenOptions, plan),
        progress=lambda line: adapter.post(lambda: adapter.conversation.write(f"{line}\n")),
    )
    name = plan.session or f"dap-{uuid.uuid4().hex[:8]}"
    if not plan.fresh and name in {one.name for one in engine.sessions()}:
        raise UsageError(f"There is a session {name!r} already: attach to it, or launch with `fresh` to begin it anew.")
    return engine, ModelTree(engine.description, engine.modules()), engine.session(name, fresh=plan.fresh)


def _attached(plan: arguments.Attach) -> Opened:
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
    return plan.model is None or plan.model in names or loading.spell_model(plan.model) in names


def _chosen_session(engine: RemoteEngine, wanted: str | None) -> RemoteSession:
    shown = told_apart(one.name for one in engine.sessions())
    fitting = [n for n in shown if n == wanted] or [n for n in shown if wanted in (None, shown[n], label(n))]
    if len(fitting) == 1:
        return RemoteSession(engine.channel, fitting[0])
    known = ", ".join(shown.values()) or "none"
    asked = "there is no such session" if not fitting else "name the `session`"
    raise UnknownSession(f"attach: {asked}; there are: {known}.")


# --- breakpoints -----------------------------------------------------------------------------------------------------


def set_breakpoints(adapter: Adapter, asked: Asked) -> Body:
    given: arguments.SetBreakpoints = arguments.read(arguments.SetBreakpoints, asked.command, asked.arguments)
    tree = adapter.tree
    if not tree.means(given.source.name, given.source.path, given.source.source_reference):
        message = f"Breakpoints stand in the lines of {tree.name}, the model; this is another source."
        return {"breakpoints": [refused(message) for _ in given.breakpoints]}
    wanted = [_at_line(adapter, point) for point in given.breakpoints]
    return _replace(adapter, "source", wanted)


def _at_line(adapter: Adapter, point: arguments.SourceBreakpoint) -> Wanted:
    try:
        line, site = adapter.tree.site_at(_from_client(adapter, point.line))
    except DjinnError as error:
        return Wanted(site=None, line=point.line, condition=None, hits=None, failure=error)
    return Wanted(site=site, line=line, condition=point.condition, hits=point.hit_condition)


def set_function_breakpoints(adapter: Adapter, asked: Asked) -> Body:
    given = arguments.read(arguments.SetFunctionBreakpoints, asked.command, asked.arguments)
    wanted = [
        Wanted(site=point.name.strip() or "?", line=None, condition=point.condition, hits=point.hit_condition)
        for point in given.breakpoints
    ]
    return _replace(adapter, "function", wanted)


def _replace(adapter: Adapter, kind: Kind, wanted: list[Wanted]) -> Body:
    one = adapter.aimed_at
    answers = one.book.replace(one.session, adapter.tree, kind, wanted)
    return {"breakpoints": [_named(adapter, one, _to_client(adapter, answer)) for answer in answers]}


def _named(adapter: Adapter, one: Followed, answer: dict[str, Any]) -> dict[str, Any]:
    """Add the name of the stopped session to an answer, where the client shows no threads."""
    if not adapter.names_sessions or not answer["verified"]:
        return answer
    return {**answer, "message": f"Stops session {one.session.label}."}


def set_exception_breakpoints(adapter: Adapter, asked: Asked) -> Body:
    """Answer with an empty list: there are no exception breakpoints, but some editors send the request."""
    return {"breakpoints": []}


def breakpoint_locations(adapter: Adapter, asked: Asked) -> Body:
    given: arguments.BreakpointLocations = arguments.read(arguments.BreakpointLocations, asked.command, asked.arguments)
    tree = adapter.tree
    if not tree.means(given.source.name, given.source.path, given.source.source_reference):
        return {"breakpoints": []}
    lines = range(_from_client(adapter, given.line), _from_client(adapter, given.end_line or given.line) + 1)
    sites = [line for line in lines if 1 <= line <= len(tree.rows) and tree.rows[line - 1].site is not None]
    return {"breakpoints": [{"line": line - _shift(adapter)} for line in sites]}


def _shift(adapter: Adapter) -> int:
    return 0 if adapter.client.lines_start_at_1 else 1


def _from_client(adapter: Adapter, line: int) -> int:
    return line + _shift(adapter)


def _to_client(adapter: Adapter, answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "line": answer["line"] - _shift(adapter)} if "line" in answer else answer


# --- start, and the end ----------------------------------------------------------------------------------------------


def configuration_done(adapter: Adapter, asked: Asked) -> None:
    one, plan = adapter.first, adapter.plan
    adapter.conversation.respond(asked)
    if isinstance(plan, arguments.Launch):
        if plan.stop_on_entry and not plan.no_debug:
            one.session.breakpoint("resid_pre.0", once=True)
        moving.set_off(adapter, one, None, "run", lambda session, _: _run(session, plan))
        return
    for each in adapter.followed.values():
        if each.state == "paused":
            moving.show_stop(adapter, each)


def _run(session: RemoteSession, plan: arguments.Launch) -> Stop:
    return session.run(
        plan.prompt if plan.tokens is None else list(plan.tokens),
        max_new_tokens=plan.max_new_tokens,
        stop=plan.stop,
        ignore_eos=plan.ignore_eos,
        chat=plan.chat,
        free=plan.no_debug,
        **chosen(GivenSampling, plan),
    )


def terminate(adapter: Adapter, asked: Asked) -> Body:
    """End the session. The conversation goes on until the client disconnects."""
    _close(adapter)
    adapter.terminated()
    return {}


def disconnect(adapter: Adapter, asked: Asked) -> None:
    given: arguments.Disconnect = arguments.read(arguments.Disconnect, asked.command, asked.arguments)
    try:
        leave(adapter, given.terminate_debuggee)
    except DjinnError as error:
        adapter.conversation.refuse(asked, error)
    else:
        adapter.conversation.respond(asked)


def leave(adapter: Adapter, terminate: bool | None = None) -> None:
    """End the conversation. By default a launched session is closed (unless `keep_session`) and an attached session
    stays, without the editor's breakpoints; `terminate` overrides this."""
    adapter.over = True
    if not adapter.followed:
        adapter.let_go()
        return
    keeps = isinstance(adapter.plan, arguments.Launch) and adapter.plan.keep_session
    try:
        if adapter.launched and not keeps if terminate is None else terminate:
            _close(adapter)
        else:
            for one in adapter.followed.values():
                one.book.clear(one.session)
            if adapter.launched:
                adapter.first.session.detach()
    except (EngineUnavailable, UnknownSession):
        pass  # the engine or the session has already ended
    finally:
        adapter.let_go()


def _close(adapter: Adapter) -> None:
    try:
        adapter.first.session.close(force=True)  # launched here, or the editor asked to end it
    except UnknownSession:
        pass  # closed by another client
