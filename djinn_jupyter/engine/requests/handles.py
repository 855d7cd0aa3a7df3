"""The handler of each request, and what the request needs: both are declared at the handler, by `@handles`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from djinn_jupyter.engine.scheduling.jobs import Underway
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Reply

Method = TypeVar("Method", bound=Callable[..., Any])
Answered = Reply | Steps | Underway
Deed = Callable[[Any], str | None]
MARK: Final = "handles"


def free_for_all(request: ask.RequestBase) -> None:
    """Refuse no client, also for another's session: the request ends neither the session nor its contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    opens: bool = False  # its session need not exist yet; for every other request it has to
    while_running: bool = False  # it is answered also while a run of its session is under way
    while_away: bool = False  # it touches no session data that can be off the device
    without_rows: bool = False  # it reads no keys, values or recurrent states of the session
    at_once: bool = False  # it does not queue behind other requests of its session
    wakes_weights: bool = False  # its session begins to run; a look wakes them only where it comes to a forward pass
    whole_layers: bool = False  # it runs parts of layers or reads weights by itself, which split ones do not allow
    changes: bool = True  # after it the session may differ from its image in the journal
    owner_only: Deed = free_for_all  # says what a request would do that is its notebook's to do, or another's by force


def handles(
    request: type[ask.RequestBase],
    *,
    opens: bool = False,
    while_running: bool = False,
    while_away: bool = False,
    without_rows: bool = False,
    at_once: bool = False,
    wakes_weights: bool = False,
    whole_layers: bool = False,
    changes: bool = True,
    owner_only: Deed = free_for_all,
) -> Callable[[Method], Method]:
    """Mark a method as the handler of `request`. A request that is answered during a run touches neither rows nor data
    that can be off the device."""
    if owner_only is not free_for_all and not issubclass(request, ask.OwnerRequest):
        raise TypeError(f"{request.__name__} cannot say who asks, nor that it is forced.")
    needs = Needs(
        opens=opens,
        while_running=while_running,
        while_away=while_away or while_running,
        without_rows=without_rows or while_running,
        at_once=at_once,
        wakes_weights=wakes_weights,
        whole_layers=whole_layers,
        changes=changes,
        owner_only=owner_only,
    )

    def mark(method: Method) -> Method:
        setattr(method, MARK, (request, needs))
        return method

    return mark


class RequestHandlers:
    """The handlers of all `parts`: objects with methods that are marked. Those of a `split` model refuse what needs
    whole layers."""

    def __init__(self, *parts: object, split: bool = False) -> None:
        self._found: dict[type[ask.RequestBase], Callable[[Any, Holder], Answered]] = {}
        for part in parts:
            for name, request, needs in marked(type(part)):
                if request in self._found:
                    raise TypeError(f"{request.__name__} has two handlers.")
                self._found[request] = _refused if split and needs.whole_layers else getattr(part, name)

    @property
    def requests(self) -> frozenset[type[ask.RequestBase]]:
        """The kinds of request that have a handler."""
        return frozenset(self._found)

    def answer(self, request: ask.RequestBase, holder: Holder) -> Answered:
        """Call the request's handler. Raises UsageError where there is none."""
        handler = self._found.get(type(request))
        if handler is None:
            raise UsageError(f"The engine has no verb {type(request).__name__}.")
        return handler(request, holder)


def _refused(request: ask.RequestBase, holder: Holder) -> Answered:
    raise UsageError(
        f"A model that --tensor-parallel splits answers no {type(request).__name__}, which needs whole layers on one "
        "device: load the model without it."
    )


def marked(part: type) -> Iterator[tuple[str, type[ask.RequestBase], Needs]]:
    """Yield the marked methods of a class by name, with the request that each answers and what that needs."""
    for name, method in vars(part).items():
        if hasattr(method, MARK):
            request, needs = getattr(method, MARK)
            yield name, request, needs
