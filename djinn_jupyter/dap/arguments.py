"""The arguments of requests, named as in the protocol; those of launch and attach as in `docs/dap.md`. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from djinn_jupyter.described import settings_of
from djinn_jupyter.errors import UsageError
from djinn_jupyter.options import GivenOptions
from djinn_jupyter.sampling import GivenSampling

Count = Annotated[int, Meta(ge=0)]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base. Editors add fields of their own, which are ignored."""


class Nothing(Arguments, frozen=True): ...


class Initialize(Arguments, frozen=True):
    lines_start_at_1: bool = msgspec.field(default=True, name="linesStartAt1")
    supports_variable_paging: bool = False
    supports_invalidated_event: bool = False


class Source(Arguments, frozen=True):
    name: str | None = None
    path: str | None = None
    source_reference: int | None = None


class SourceBreakpoint(Arguments, frozen=True):
    line: int
    condition: str | None = None
    hit_condition: str | None = None
    log_message: str | None = None


class SetBreakpoints(Arguments, frozen=True):
    source: Source
    breakpoints: tuple[SourceBreakpoint, ...] = ()


class FunctionBreakpoint(Arguments, frozen=True):
    name: str
    condition: str | None = None
    hit_condition: str | None = None


class SetFunctionBreakpoints(Arguments, frozen=True):
    breakpoints: tuple[FunctionBreakpoint, ...]


class BreakpointLocations(Arguments, frozen=True):
    source: Source
    line: int
    end_line: int | None = None


class ReadSource(Arguments, frozen=True):
    source: Source | None = None
    source_reference: int = 0


class OfThread(Arguments, frozen=True):
    thread_id: int


class StackTrace(Arguments, frozen=True):
    thread_id: int
    start_frame: Count = 0
    levels: Count = 0


class OfFrame(Arguments, frozen=True):
    frame_id: int


class Variables(Arguments, frozen=True):
    variables_reference: int
    filter: Literal["indexed", "named"] | None = None
    start: Count = 0
    count: Count = 0


class SetVariable(Arguments, frozen=True):
    variables_reference: int
    name: str
    value: str


class Evaluate(Arguments, frozen=True):
    expression: str
    frame_id: int | None = None
    context: str | None = None


class Completions(Arguments, frozen=True):
    text: str
    column: int
    line: int | None = None
    frame_id: int | None = None


class Disconnect(Arguments, frozen=True):
    terminate_debuggee: bool | None = None


if TYPE_CHECKING:
    Settings = msgspec.Struct
else:  # of the engine, as `djinn_jupyter.load` takes them, and of sampling, as `session.run` does
    described = (*settings_of(GivenOptions), *settings_of(GivenSampling))
    Settings = msgspec.defstruct(
        "Settings", [(one.name, one.in_json, None) for one in described], kw_only=True, frozen=True
    )


class Launch(Settings, frozen=True, kw_only=True):
    """Arguments of launch: those of `session.run`, the session, and where to stop."""

    model: str
    prompt: str | None = None
    tokens: tuple[int, ...] | None = None
    max_new_tokens: Count = 20
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    chat: bool = False
    session: str | None = None
    fresh: bool = False
    force: bool = False
    keep_session: bool = False
    stop_on_entry: bool = False
    no_debug: bool = msgspec.field(default=False, name="noDebug")


class Attach(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of attach: an existing session of a running engine."""

    model: str | None = None
    pid: int | None = None
    session: str | None = None
    all_sessions: bool = False
    force: bool = False


EDITORS_OWN = frozenset(
    "type request name noDebug debugServer preLaunchTask postDebugTask presentation internalConsoleOptions "
    "serverReadyAction suppressMultipleSessionWarning timeout cwd program console env args restart justMyCode "
    "token".split()
)


def read(kind: type[Any], command: str, given: object) -> Any:
    """Convert `given` to a struct; UsageError names the wrong field."""
    try:
        return msgspec.convert({} if given is None else given, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{command}: {error}.") from None


def passed_over(kind: type[msgspec.Struct], given: object) -> list[str]:
    """Return the fields of a configuration that are neither ours nor an editor's own: most likely misspelled."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)} | EDITORS_OWN
    names = given if isinstance(given, dict) else {}
    return sorted(name for name in names if name not in known and not name.startswith("__"))
