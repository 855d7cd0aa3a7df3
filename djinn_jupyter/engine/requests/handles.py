"""The handler of each request: a method marked by `@handles`. It is called with the request, with its session where it
concerns one that is there, and with the holder who asks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, Protocol, overload

from djinn_jupyter.engine.scheduling.jobs import Underway
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.steps import Answer, Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import UsageError
from djinn_jupyter.extensions import in_short
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Reply

Given = ParamSpec("Given")
Answered = Reply | Steps[Reply] | Underway
MARK: Final = "handles"


class HandlerMark(Protocol[Answer]):
    """Takes a method that returns this reply, or the steps to it."""

    @overload
    def __call__(self, method: Callable[Given, Steps[Answer]], /) -> Callable[Given, Steps[Answer]]: ...
    @overload
    def __call__(
        self, method: Callable[Given, Answer | Steps[Answer] | Underway], /
    ) -> Callable[Given, Answer | Steps[Answer] | Underway]: ...


def handles(request: type[ask.RequestBase[Answer]]) -> HandlerMark[Answer]:
    """Mark a method as the handler of `request`, which returns a reply that its class line declares."""

    def mark(method: Callable[Given, Any]) -> Callable[Given, Any]:
        setattr(method, MARK, request)
        return method

    return mark


class RequestHandlers:
    """The handlers of all `parts`: objects with methods that are marked. Those of a `split` model refuse what needs
    whole layers."""

    def __init__(self, sessions: SessionTable, *parts: object, split: bool = False) -> None:
        self._sessions = sessions
        self._found: dict[type[ask.Request], Callable[..., Answered]] = {}
        for part in parts:
            for name, request in marked(type(part)):
                if request in self._found:
                    raise TypeError(f"{request.__name__} has two handlers.")
                method = kinds.method_of(request)
                own = getattr(part, name)
                handler = own if method is None or method.is_ours else _of_a_stranger(own)
                self._found[request] = _refused if split and request.terms.whole_layers else handler

    @property
    def requests(self) -> frozenset[type[ask.Request]]:
        """The kinds of request that have a handler."""
        return frozenset(self._found)

    def answer(self, request: ask.Request, holder: Holder) -> Answered:
        """Call the request's handler. Raises UsageError where there is none, UnknownSession where its session is not
        there."""
        handler = self._found.get(type(request))
        if handler is None:
            raise UsageError(f"No method of the engine is marked @handles({type(request).__name__}).")
        if isinstance(request, ask.SessionRequest) and not type(request).terms.opens:
            return handler(request, self._sessions.find(request.session), holder)
        return handler(request, holder)


def _refused(request: ask.Request, *_: object) -> Answered:
    raise UsageError(
        f"A model that --tensor-parallel splits answers no {type(request).__name__}, which needs whole layers on one "
        "device: load the model without it."
    )


def _of_a_stranger(handler: Callable[..., Answered]) -> Callable[..., Answered]:
    """Return a handler of which an exit, or a reply that its request does not declare, ends this request alone."""

    def answer(request: ask.Request, *given: Any) -> Answered:
        with _going_on():
            found = handler(request, *given)
        if isinstance(found, Underway):
            return Underway(session=found.session, steps=_steps_of(request, found.steps))
        return _steps_of(request, found) if isinstance(found, Generator) else _declared(request, found)

    return answer


def _steps_of(request: ask.Request, steps: Steps[Reply]) -> Steps[Reply]:
    with _going_on():
        reply = yield from steps
    return _declared(request, reply)


def _declared(request: ask.Request, reply: Reply) -> Reply:
    is_declared = request.is_answered_by(reply)
    if not is_declared:
        raise TypeError(f"the handler of {type(request).__name__} returned {type(reply).__name__}")
    return reply


@contextmanager
def _going_on() -> Iterator[None]:
    """Raise RuntimeError in place of what would end the engine."""
    try:
        yield
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(in_short(error)) from error


def marked(part: type) -> Iterator[tuple[str, type[ask.Request]]]:
    """Yield the marked methods of a class by name, with the request that each answers."""
    for name, method in vars(part).items():
        if hasattr(method, MARK):
            yield name, getattr(method, MARK)
