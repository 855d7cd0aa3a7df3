"""The adapter has a handler for every capability that it announces."""

from __future__ import annotations

import pytest

from djinn_jupyter.editors.dap import protocol
from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.protocol import CAPABILITIES, Body, CommandHandlers, Request, handles
from djinn_jupyter.errors import UsageError

NEEDED = {
    "supportsConfigurationDoneRequest": "configurationDone",
    "supportsFunctionBreakpoints": "setFunctionBreakpoints",
    "supportsBreakpointLocationsRequest": "breakpointLocations",
    "supportsSetVariable": "setVariable",
    "supportsStepBack": "stepBack",
    "supportsCompletionsRequest": "completions",
    "supportsLoadedSourcesRequest": "loadedSources",
    "supportsTerminateRequest": "terminate",
}
ALWAYS = frozenset(
    "initialize launch attach disconnect setBreakpoints setExceptionBreakpoints threads stackTrace scopes variables "
    "evaluate source continue next stepIn stepOut reverseContinue pause".split()
)


def test_every_capability_has_its_handler() -> None:
    promised = {command for capability, command in NEEDED.items() if CAPABILITIES[capability]}
    assert Adapter(lambda message: None).handlers.commands == promised | ALWAYS


class Part:
    @handles("next", protocol.OfThread)
    def next(self, given: protocol.OfThread, request: Request) -> Body:
        return {"thread": given.thread_id}


def test_a_handler_is_given_its_arguments_read() -> None:
    handlers = CommandHandlers(Part())
    assert handlers.answer(Request(number=1, command="next", arguments={"threadId": 7})) == {"thread": 7}
    with pytest.raises(UsageError, match="threadId"):
        handlers.answer(Request(number=2, command="next", arguments={}))
    with pytest.raises(UsageError, match="no command 'goto'"):
        handlers.answer(Request(number=3, command="goto", arguments={}))


def test_two_handlers_of_one_command_are_refused() -> None:
    with pytest.raises(TypeError, match="next has two handlers"):
        CommandHandlers(Part(), Part())
