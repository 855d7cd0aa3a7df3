"""The table from the protocol's commands to functions. A function returns the body of the response, or None where it
responds itself, at once or later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from djinn_jupyter.dap import arguments, configuring, looking, moving
from djinn_jupyter.dap.conversation import Asked
from djinn_jupyter.dap.followed import Followed, MoveName

if TYPE_CHECKING:
    from djinn_jupyter.dap.adapter import Adapter

Command = Callable[["Adapter", Asked], Mapping[str, Any] | None]
By = Literal["layer", "token", "point"]


def _thread(adapter: Adapter, asked: Asked) -> Followed:
    given: arguments.OfThread = arguments.read(arguments.OfThread, asked.command, asked.arguments)
    return adapter.thread(given.thread_id)


def _move(name: MoveName, verb: moving.Verb) -> Command:
    def move(adapter: Adapter, asked: Asked) -> None:
        moving.go_on(adapter, _thread(adapter, asked), asked, name, verb)

    return move


def _back(verb: moving.Verb) -> Command:
    """Return the command for a move back, which is allowed also at the end of a run, where nothing is stopped."""

    def move(adapter: Adapter, asked: Asked) -> None:
        moving.set_off(adapter, _thread(adapter, asked), asked, "back", verb)

    return move


def _step(by: By) -> Command:
    return _move("step", lambda session, seen: session.step(by=by, stop=seen))


def _pause(adapter: Adapter, asked: Asked) -> Mapping[str, Any]:
    moving.pause(adapter, _thread(adapter, asked))
    return {}


COMMANDS: Final[dict[str, Command]] = {
    "initialize": configuring.initialize,
    "launch": configuring.launch,
    "attach": configuring.attach,
    "setBreakpoints": configuring.set_breakpoints,
    "setFunctionBreakpoints": configuring.set_function_breakpoints,
    "setExceptionBreakpoints": configuring.set_exception_breakpoints,
    "breakpointLocations": configuring.breakpoint_locations,
    "configurationDone": configuring.configuration_done,
    "threads": looking.threads,
    "stackTrace": looking.stack_trace,
    "scopes": looking.scopes,
    "variables": looking.variables,
    "setVariable": looking.set_variable,
    "evaluate": looking.evaluate,
    "completions": looking.completions,
    "source": looking.source,
    "loadedSources": looking.loaded_sources,
    "continue": _move("continue", lambda session, seen: session.resume(stop=seen)),
    "next": _step("layer"),
    "stepIn": _step("point"),
    "stepOut": _step("token"),
    "stepBack": _back(moving.back),
    "reverseContinue": _back(moving.back_to_breakpoint),
    "pause": _pause,
    "terminate": configuring.terminate,
    "disconnect": configuring.disconnect,
}
