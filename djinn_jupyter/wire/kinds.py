"""The kinds of messages: the core's, and each method's, which lie in the method's package. They are collected at first
use, when the methods' `request` modules are imported."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from typing import Any, Final, Literal

import msgspec

from djinn_jupyter.extensions import Method, in_short, installed, leave_out, methods, part, refuse_clashes
from djinn_jupyter.wire.base import EventBase, Failed
from djinn_jupyter.wire.pieces import InPieces
from djinn_jupyter.wire.replies import ReplyBase
from djinn_jupyter.wire.requests import RequestBase, RequestMeta

CORE: Final = "djinn_jupyter.wire"
What = Literal["requests", "replies", "events"]
WHAT: Final[tuple[What, ...]] = typing.get_args(What)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The kinds of messages of the core, of a method, or of several together."""

    requests: tuple[type[RequestBase[Any]], ...]
    replies: tuple[type[ReplyBase], ...]
    events: tuple[type[EventBase], ...]

    @property
    def all(self) -> tuple[type[msgspec.Struct], ...]:
        return (*self.requests, *self.replies, *self.events)

    def __add__(self, other: Kinds) -> Kinds:
        return Kinds(
            requests=(*self.requests, *other.requests),
            replies=_once((*self.replies, *other.replies)),  # a method's reply may be another's
            events=(*self.events, *other.events),
        )


@cache
def core() -> Kinds:
    found = _kinds_in(CORE)
    return Kinds(requests=found.requests, replies=_once((Failed, InPieces, *found.replies)), events=found.events)


@cache
def of_methods() -> Mapping[Method, Kinds]:
    """Return the kinds that each method adds. Strangers' methods with unreadable or ambiguous messages are left out."""
    found = {
        method: _kinds_in(f"{method.package}.request") for method in methods() if part(method, "request") is not None
    }
    for what in WHAT:
        refuse_clashes("message", _claims(what, found), [_tag(kind) for kind in getattr(core(), what)])
    unmistaken = {method: kinds for method, kinds in found.items() if method in methods()}
    return {method: kinds for method, kinds in unmistaken.items() if method.is_ours or _is_readable(method, kinds)}


@cache
def ours() -> Kinds:
    """Return the kinds of the core and of our methods, from which the pages and the sidebar's types are written."""
    return sum((kinds for method, kinds in of_methods().items() if method.is_ours), core())


@cache
def known() -> Kinds:
    """Return all kinds that are read here."""
    return sum(of_methods().values(), core())


@cache
def any_of(what: What) -> Any:
    """Return the union of all requests, replies or events that are read here."""
    return reduce(or_, getattr(known(), what))


@cache
def method_of(kind: type[msgspec.Struct]) -> Method | None:
    """Return the method of a kind, also one that is left out; None for a kind of the core."""
    return next((method for method in installed() if method.has(kind.__module__)), None)


def _kinds_in(package: str) -> Kinds:
    """Return the requests and events of a module or package, with the replies to the requests."""
    requests = _those_in(package, RequestMeta.kinds)
    replies = (reply for kind in requests for reply in typing.get_args(kind.answered_by) or (kind.answered_by,))
    return Kinds(
        requests=requests,
        replies=_once(reply for reply in replies if reply is not ReplyBase),  # of Assemble, which has another's reply
        events=_those_in(package, EventBase.__subclasses__()),
    )


def _those_in(package: str, kinds: Iterable[Any]) -> tuple[Any, ...]:
    """Return the kinds within a package: among several of one name the last, whose import was complete."""
    inside = (one for one in kinds if f"{one.__module__}.".startswith(f"{package}."))
    by_name = {(one.__module__, one.__qualname__): one for one in inside}
    return tuple(sorted(by_name.values(), key=lambda one: one.__module__))


def _once(kinds: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(kinds))


def _claims(what: What, found: Mapping[Method, Kinds]) -> dict[str, list[Method]]:
    """Return which methods have messages of each name; a name of two methods is the first one's."""
    claims = dict[str, dict[type, Method]]()
    for method, kinds in found.items():
        for kind in getattr(kinds, what):
            if kind not in getattr(core(), what):
                claims.setdefault(_tag(kind), {}).setdefault(kind, method)
    return {name: [*by.values()] for name, by in claims.items()}


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _is_readable(method: Method, kinds: Kinds) -> bool:
    """Return whether a stranger's messages can be decoded beside the core's; otherwise the method is left out."""
    try:
        for what in WHAT:
            msgspec.msgpack.Decoder(reduce(or_, getattr(core() + kinds, what)))
        msgspec.inspect.multi_type_info(kinds.all)
    except Exception as error:  # noqa: BLE001  a stranger's types may be anything
        leave_out(method, f"its messages cannot be read ({in_short(error)}): mend or uninstall it")
        return False
    return True
