"""The handlers of requests, methods of classes marked by `@handles`: each is called with the request, with its session
where it concerns one that is there, and with the holder who asks. `MethodParts` is what those of methods are given."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar, overload

from djinn_jupyter.engine.loop.dispatch import Answered
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.scheduler import Underway
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.breakpoints import Rule
from djinn_jupyter.engine.requests import recipes
from djinn_jupyter.engine.residency.workspace import Workspace
from djinn_jupyter.engine.session.residence import Answer, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.store.checkpoint_files import FileWorker, UntilDone
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.errors import UsageError
from djinn_jupyter.extensions import Method, in_short, leave_out, methods, part
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.looks import Circumstances
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.replies import Reply

Given = ParamSpec("Given")
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
    """The handlers of all `parts`: objects with marked methods. `split`: refuse requests that need whole layers."""

    def __init__(self, sessions: SessionTable, *parts: object, split: bool = False) -> None:
        self._sessions = sessions
        self._found: dict[type[ask.Request], Callable[..., Answered]] = {}
        for one in parts:
            for name, request in marked(type(one)):
                if request in self._found:
                    raise TypeError(f"{request.__name__} has two handlers.")
                method = kinds.method_of(request)
                own = getattr(one, name)
                handler = own if method is None or method.is_ours else _of_a_stranger(own)
                self._found[request] = _refused if split and request.terms.whole_layers else handler

    @property
    def requests(self) -> frozenset[type[ask.Request]]:
        """The kinds of request that have a handler."""
        return frozenset(self._found)

    def answer(self, request: ask.Request, holder: Holder) -> Answered:
        """Call the request's handler. Raises UsageError where there is none, UnknownSession without its session."""
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
    """Return a handler whose exit, or whose undeclared reply, ends only this request."""

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
    """Raise RuntimeError in place of an exit that would end the engine."""
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


Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodParts:
    """The parts of the engine for methods, one value for the life of the engine. At its start the engine calls
    `handlers(parts)` of the method's `engine` once, or of the module `handlers` if that is a folder. It returns objects
    whose methods are marked by `@handles` with the method's own requests; each is called with the request, with its
    session where it concerns one, and with the holder who asks. Everything is used on the engine's thread."""

    sessions: SessionTable
    """The sessions by name: `find` returns one or raises UnknownSession; `on_removal` calls back with each that has
    closed."""

    runtime: Runtime
    """The model, its tokenizer and description, and what a pass needs; `of(session)` computes as that session does."""

    budget: Budget
    """The device's memory in bytes. A method draws on it by a `workspace`."""

    identity: ModelIdentity
    """The digests by which the model is known."""

    files: FileWorker
    """The thread that works on files."""

    until_done: UntilDone
    """Makes the steps of a job that wait for that thread."""

    extents: dict[str, int]
    """How long the lists of a request may be, by the noun of their mark `bounded_by`. A method adds its own nouns."""

    def workspace(self, name: str) -> Workspace:
        """Return a part of the budget for the jobs of a method, under this name in statistics."""
        return Workspace(self.budget, self.runtime.space, name)

    def origin(self) -> Provenance:
        """Return the provenance of this engine's results."""
        return recipes.origin(self.identity, self.runtime.description)

    def circumstances(self, session: Session, rules: Iterable[Rule] = (), taps: Iterable[Tap] = ()) -> Circumstances:
        """Return what a measurement in a session, with these rules and taps, follows from besides its request."""
        return recipes.circumstances(self.identity, self.runtime.description, session, rules, taps)

    def file_work(self, work: Callable[[], Outcome]) -> Generator[None, None, Outcome]:
        """Do the work on the files' thread; the steps wait for it, and return its result. Raises its error."""
        return self.until_done(self.files.start(work))


def handlers_of_methods(parts: MethodParts) -> Iterator[object]:
    """Yield the handlers of all methods. A stranger's method is left out where it cannot make its own, or has handlers
    for requests of others."""
    for method in methods():
        try:
            yield from _handlers_of(method, parts)
        except BaseException as error:  # a stranger's module may raise anything
            if method.is_ours or isinstance(error, KeyboardInterrupt):
                raise
            leave_out(method, f"its engine fails ({in_short(error)}): mend or uninstall it")


def _handlers_of(method: Method, parts: MethodParts) -> tuple[object, ...]:
    module = part(method, "engine")
    if module is not None and hasattr(module, "__path__"):
        module = part(method, "engine.handlers")
    found = () if module is None else tuple(module.handlers(parts))
    for request in RequestHandlers(parts.sessions, *found).requests:
        if not method.has(request.__module__):
            raise TypeError(f"{request.__name__} is no request of its own")
    return found
