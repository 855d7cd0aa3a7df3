"""The handler of each request of the protocol, and the type of its arguments: both are declared at the handler, by
`@handles`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from djinn_jupyter.dap import arguments
from djinn_jupyter.dap.protocol import Request
from djinn_jupyter.errors import UsageError

Method = TypeVar("Method", bound=Callable[..., Any])
Body = Mapping[str, Any]
Handler = Callable[[Request], Body | None]
MARK: Final = "handles"


def handles(command: str, given: type[Any] = arguments.Nothing) -> Callable[[Method], Method]:
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
        """Call the request's handler. UsageError where there is none, or where the arguments are not its."""
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
    return lambda request: method(arguments.read(given, command, request.arguments), request)
