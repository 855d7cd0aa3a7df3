"""The parts of the engine that a method gets, and the handlers that it has, found by the registry."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from djinn_jupyter.engine.interventions.steering import Rule
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.persistence.file_worker import FileWorker, UntilDone
from djinn_jupyter.engine.persistence.identity import ModelIdentity
from djinn_jupyter.engine.requests import origin
from djinn_jupyter.engine.requests.handles import RequestHandlers
from djinn_jupyter.engine.requests.workspace import Workspace
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.extensions import Method, in_short, leave_out, methods, part
from djinn_jupyter.wire.circumstances import Circumstances
from djinn_jupyter.wire.provenance import Provenance

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodParts:
    """The parts of the engine that a method works with, one value for the life of the engine. The engine calls
    `handlers(parts)` of the method's `engine` once, when it begins; where that is a folder, of the module `handlers` in
    it. It returns objects whose methods are marked by `@handles` with the method's own requests; each is called with
    the request, with its session where it concerns one, and with the holder who asks. All is used on the engine's
    thread."""

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
        """Return a part of the budget for the jobs of a method, under the name that statistics have for it."""
        return Workspace(self.budget, self.runtime.space, name)

    def origin(self) -> Provenance:
        """Return the provenance of what this engine computes."""
        return origin.origin(self.identity, self.runtime.description)

    def circumstances(self, session: Session, rules: Iterable[Rule] = (), taps: Iterable[Tap] = ()) -> Circumstances:
        """Return what a measurement in a session, under these rules and at these taps, follows from besides its
        request."""
        return origin.circumstances(self.identity, self.runtime.description, session, rules, taps)

    def file_work(self, work: Callable[[], Outcome]) -> Generator[None, None, Outcome]:
        """Do the work on the files' thread; the steps wait for it, and end in its result. Raises its error."""
        return self.until_done(self.files.start(work))


def handlers_of_methods(parts: MethodParts) -> Iterator[object]:
    """Yield the handlers of all methods. A stranger's method is left out where it cannot make its own, or has some for
    requests that are not its own."""
    for method in methods():
        try:
            yield from _handlers_of(method, parts)
        except BaseException as error:  # a stranger's module may raise what it likes
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
