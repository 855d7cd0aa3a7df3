"""The arguments of requests, named as in the protocol; those of launch and attach as in `docs/dap.md`. Values only."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from djinn_jupyter.errors import DjinnError, MalformedMessage, MessageTooLarge, UsageError
from djinn_jupyter.settings import GivenOptions, GivenSampling, settings_of

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


# Both directions of the protocol: the client's requests as values, and the responses and events sent to it, numbered
# in the order in which they are sent.

Message = dict[str, Any]
Send = Callable[[Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of the client: its number, command and arguments."""

    number: int
    command: str
    arguments: object


def read_request(message: Message) -> Request | None:
    """Return the request in a message, or None for an invalid one."""
    number, command = message.get("seq"), message.get("command")
    if message.get("type") != "request" or not isinstance(number, int) or not isinstance(command, str):
        return None
    return Request(number=number, command=command, arguments=message.get("arguments"))


class Client:
    """The editor at the other end. Every request is answered once: by `respond` or by `refuse`. `capabilities` are
    those of its initialize request."""

    def __init__(self, send: Send) -> None:
        self.capabilities = Initialize()
        self._send_message = send
        self._number = 0
        self._terminated = False

    def respond(self, request: Request, body: Mapping[str, Any] | None = None) -> None:
        self._answer(request, success=True, **({"body": dict(body)} if body else {}))

    def refuse(self, request: Request, error: DjinnError) -> None:
        """Refuse a request with the error's one sentence, in `message` for programs and in `body.error` for display."""
        sentence = " ".join(str(error).split())
        number = zlib.crc32(error.code.encode()) & 0x7FFFFFFF
        shown = {"id": number, "format": sentence, "showUser": True}
        self._answer(request, success=False, message=sentence, body={"error": shown})

    def send_event(self, event: str, body: Mapping[str, Any] | None = None) -> None:
        self._send("event", event=event, **({"body": dict(body)} if body else {}))

    def write(self, text: str, category: str = "console") -> None:
        """Write text to the debug console: `stdout` for generated text, `console` for the adapter's remarks."""
        self.send_event("output", {"category": category, "output": text})

    def terminated(self) -> None:
        """Send `terminated`, at most once."""
        if not self._terminated:
            self._terminated = True
            self.send_event("terminated")

    # --- lines: the model's count from 1, those of some clients from 0 ----------------------------------------------

    def to_line(self, line: int) -> int:
        """Return a line of the model as the client counts it."""
        return line - self._shift

    def from_line(self, line: int) -> int:
        """Return a line of the client's as the model counts it."""
        return line + self._shift

    @property
    def _shift(self) -> int:
        return 0 if self.capabilities.lines_start_at_1 else 1

    def _answer(self, request: Request, **rest: Any) -> None:
        self._send("response", request_seq=request.number, command=request.command, **rest)

    def _send(self, kind: str, **rest: Any) -> None:
        self._number += 1
        self._send_message({"seq": self._number, "type": kind, **rest})


# Messages of the Debug Adapter Protocol as bytes: a Content-Length header, then JSON. Knows no commands.

MESSAGE_BYTES = 64 * 2**20
HEADER_BYTES = 4096
_END = b"\r\n\r\n"
_FIELDS = (b"content-length:", b"content-type:")


def encode(message: Mapping[str, Any]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, allow_nan=False)
    body = text.encode(errors="backslashreplace")  # a lone surrogate, which a client can send, as JSON's own escape
    return b"Content-Length: %d%s%s" % (len(body), _END, body)


class Unframer:
    """Split bytes into messages of at most `most` bytes. `lost` is set by an invalid header: the start of the next
    message is then unknown."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._length: int | None = None
        self.most = MESSAGE_BYTES
        self.lost = False

    def feed(self, more: bytes) -> None:
        self._bytes += more

    def take(self) -> dict[str, Any] | None:
        """Return the next whole message; None when more bytes are needed. MalformedMessage for a message that is not a
        JSON object, after which the next may be taken. MalformedMessage or MessageTooLarge for an invalid header, after
        which `lost` is set and no more may be taken."""
        if self._length is None and not self._take_header():
            return None
        assert self._length is not None
        if len(self._bytes) < self._length:
            return None
        body = bytes(self._bytes[: self._length])
        del self._bytes[: self._length]
        self._length = None
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            raise MalformedMessage(f"A message of {len(body)} bytes is no JSON.") from None
        if not isinstance(message, dict):
            raise MalformedMessage("A message is a JSON object.")
        return message

    def _take_header(self) -> bool:
        end = self._bytes.find(_END)
        size = len(self._bytes) if end < 0 else end
        if size > HEADER_BYTES or not _begins_header(bytes(self._bytes[:size])):
            raise self._lose(MalformedMessage("What came is no header of the Debug Adapter Protocol."))
        if end < 0:
            return False
        header = bytes(self._bytes[:end]).decode("ascii", errors="replace")
        del self._bytes[: end + len(_END)]
        self._length = self._length_in(header)
        return True

    def _length_in(self, header: str) -> int:
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in header.split("\r\n"))
        }
        given = fields.get("content-length", "")
        if not given.isdecimal():
            raise self._lose(MalformedMessage("A header has no Content-Length."))
        length = int(given)
        if length > self.most:
            raise self._lose(MessageTooLarge(f"A message of {length} bytes is more than {self.most}."))
        return length

    def _lose(self, error: MalformedMessage | MessageTooLarge) -> MalformedMessage | MessageTooLarge:
        self.lost = True
        return error


def _begins_header(data: bytes) -> bool:
    """Return True for fields of the protocol's header; the last may be cut off."""
    *whole, last = data.lower().split(b"\r\n")
    cut = last.rstrip(b"\r")
    return all(line.startswith(_FIELDS) for line in whole) and (
        cut.startswith(_FIELDS) or any(field.startswith(cut) for field in _FIELDS)
    )


# The handler of each request of the protocol, and the type of its arguments: both are declared at the handler, by
# `@handles`.

Method = TypeVar("Method", bound=Callable[..., Any])
Body = Mapping[str, Any]
Handler = Callable[[Request], Body | None]
MARK: Final = "handles"


def handles(command: str, given: type[Any] = Nothing) -> Callable[[Method], Method]:
    """Mark a method as the handler of a command. It is called with the command's arguments, read as `given`, and with
    the request; it returns the body of the response, or None where it responds itself, at once or later."""

    def mark(method: Method) -> Method:
        setattr(method, MARK, (command, given))
        return method

    return mark


class CommandHandlers:
    """The handlers of all `parts`: objects with methods that are marked."""

    def __init__(self, *parts: object) -> None:
        self._found: dict[str, Handler] = {}
        for command, handler in (one for part in parts for one in _handlers_of(part)):
            if command in self._found:
                raise TypeError(f"{command} has two handlers.")
            self._found[command] = handler

    @property
    def commands(self) -> frozenset[str]:
        return frozenset(self._found)

    def answer(self, request: Request) -> Body | None:
        """Call the request's handler. UsageError where there is none, or for wrong arguments."""
        handler = self._found.get(request.command)
        if handler is None:
            raise UsageError(f"This adapter has no command {request.command!r}.")
        return handler(request)


def _handlers_of(part: object) -> Iterator[tuple[str, Handler]]:
    for name, method in vars(type(part)).items():
        if hasattr(method, MARK):
            command, given = getattr(method, MARK)
            yield command, _reading(getattr(part, name), command, given)


def _reading(method: Callable[[Any, Request], Body | None], command: str, given: type[Any]) -> Handler:
    return lambda request: method(read(given, command, request.arguments), request)


# The adapter's capabilities, returned by initialize.

CAPABILITIES: Final[dict[str, Any]] = {
    "supportsConfigurationDoneRequest": True,
    "supportsFunctionBreakpoints": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsBreakpointLocationsRequest": True,
    "supportsEvaluateForHovers": True,
    "supportsSetVariable": True,
    "supportsStepBack": True,
    "supportsCompletionsRequest": True,
    "supportsLoadedSourcesRequest": True,
    "supportsDelayedStackTraceLoading": True,
    "supportsSingleThreadExecutionRequests": True,
    "supportsTerminateRequest": True,
    "supportTerminateDebuggee": True,
    "supportsLogPoints": False,
    "supportsRestartRequest": False,
    "supportsExceptionInfoRequest": False,
    "exceptionBreakpointFilters": [],
}
