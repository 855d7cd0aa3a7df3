"""The declaration of requests, their limits, and settings that cannot be computed."""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Generic, Literal, TypeGuard, TypeVar

import msgspec
from msgspec import Meta

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.base import MOST_TOKENS as MOST_TOKENS
from djinn_jupyter.wire.base import PERSONAL, SHARED, Frozen, ReplyBase, person_of
from djinn_jupyter.wire.base import Positions as Positions
from djinn_jupyter.wire.base import SomeTokens as SomeTokens
from djinn_jupyter.wire.base import Tokens as Tokens
from djinn_jupyter.wire.nouns import Sampling, StopIdentity

LONGEST_NAME = 512
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
OwnName = Annotated[Name, PERSONAL]
SessionName = Annotated[OwnName, SHARED]
NotebookPath = Annotated[str, Meta(min_length=1, max_length=4096), PERSONAL]
Spelling = Annotated[str, Meta(min_length=1, max_length=1024)]
ConditionText = Annotated[str, Meta(min_length=1, max_length=2000)]
Text = Annotated[str, Meta(max_length=4_000_000)]
LONGEST_STOP = 4096
StopStrings = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=LONGEST_STOP)], ...], Meta(max_length=64)]
OneOrTwo = Annotated[tuple[Annotated[int, Meta(ge=0)] | Name, ...], Meta(min_length=1, max_length=2)]
Chosen = Annotated[tuple[Annotated[int, Meta(ge=0)] | Name, ...], Meta(max_length=1000)]
COLDEST = 1e-30
"""The largest logit of float16, 65,504, times the largest penalty and divided by this, is 6.6e37,
and float32 ends at 3.4e38."""
MOST_PENALTY = 1e3
Seed = Annotated[int, Meta(ge=-(2**63))]  # no message carries a number of 2**64 or more
LARGEST_SINGLE = (2 - 2**-23) * 2.0**127  # the largest float32; a rule with a larger number makes infinity
LONGEST_REST = 365 * 86400.0  # seconds
Count = Annotated[int, Meta(ge=1, le=1_000_000)]


def is_carried(name: str) -> bool:
    """Return whether a request carries this engine's name of something, which includes the person before the person's
    own name."""
    person = person_of(name)
    own = name if person is None else name.removeprefix(f"{person}@")
    return 1 <= len(own) <= LONGEST_NAME


def require_rest(seconds: float) -> None:
    """Raise UsageError for an impossible length of a rest, including NaN."""
    if not 0.0 <= seconds <= LONGEST_REST:
        raise UsageError(f"A rest lasts 0 to {LONGEST_REST:.0f} seconds (a year); it cannot last {seconds}.")


def require_computable(sampling: Sampling) -> None:
    """Raise UsageError for a value that overflows 32-bit numbers."""
    if 0 < sampling.temperature < COLDEST:
        raise UsageError(
            f"A temperature is 0 (greedy) or at least {COLDEST:g}, for logits divided by less leave 32-bit numbers; "
            f"it cannot be {sampling.temperature!r}."
        )
    penalty = sampling.repetition_penalty
    if penalty is not None and not 1 / MOST_PENALTY <= penalty <= MOST_PENALTY:
        raise UsageError(
            f"repetition_penalty is {1 / MOST_PENALTY:g} to {MOST_PENALTY:g}, 1 for none; it cannot be {penalty!r}."
        )


# A request is declared once, by its class: its fields, its reply, and its terms. All tables of requests follow from
# these.


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a request, from its class line. A request that is answered during a run touches neither rows nor
    data that may be off the device, and one that may be repeated changes nothing."""

    shared: Literal["read", "write"] | None = None  # what a person needs for another's session; None: its owner only
    of_the_engine: bool = False  # it concerns everyone's sessions: for the engine's own user only
    browser: Literal["asks", "moves", "opens"] | None = None  # None: not allowed from a browser
    resent: Literal["anew", "refused"] | None = None  # when it comes again; None: its session knows if it was done
    changes: bool = True  # after it the session may differ from its image in the journal
    unasked: Literal["view", "line"] | None = None  # a notebook, a panel or the connection sends it by itself, often
    makes: str | None = None  # the field with the session that it creates if none has that name
    saves: str | None = None  # the field with the checkpoint that it writes, once, for its session
    fills: bool = False  # its session gets tokens by it, for which its person needs room on host and disk
    keeps_arrays: bool = False  # its arrays stay with its session
    opens: bool = False  # its session need not exist yet; for every other request it has to
    while_running: bool = False  # it is answered also during a run of its session
    while_looking: bool = False  # it is answered also while its session is read or measured
    while_away: bool = False  # it touches no session data that may be off the device
    without_rows: bool = False  # it reads no keys, values or recurrent states of the session
    at_once: bool = False  # it does not queue behind other requests of its session
    wakes_weights: bool = False  # its session begins to run; a reading wakes them only at a forward pass
    whole_layers: bool = False  # it runs parts of layers or reads weights by itself, which split models do not allow
    small: bool = False  # it is accepted also without memory: its reply is small, or it frees memory

    def __str__(self) -> str:
        said = ((term, getattr(self, term.name)) for term in fields(self))
        return " ".join(f"{term.name}={value}" for term, value in said if value != term.default)


_TERMS: Final = frozenset(term.name for term in fields(Terms))
R = TypeVar("R", bound=ReplyBase, covariant=True)
Answer = TypeVar("Answer", bound=ReplyBase)


class RequestMeta(msgspec.StructMeta):
    """Takes reply and terms from class lines. A class whose line has a reply is a request, and is in `kinds`."""

    answered_by: Any  # a reply, or a union of some
    terms: Terms
    kinds: Final[list[type[RequestBase[Any]]]] = []

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **said: Any) -> Any:
        terms = {term: said.pop(term) for term in _TERMS & said.keys()}
        reply = _reply_in(namespace.get("__orig_bases__", ()))
        if reply is None:
            if terms:
                raise TypeError(f"{name} has terms and no reply: say it as {name}(SessionRequest[YourReply], ...).")
            return super().__new__(mcls, name, bases, namespace, **said)
        if not all(issubclass(one, ReplyBase) for one in typing.get_args(reply) or (reply,)):
            raise TypeError(f"{name} is answered by {reply}, which is no reply.")
        if terms.get("makes") == "session":
            terms["opens"] = True
        if terms.get("while_running"):
            terms |= {"while_away": True, "without_rows": True}
        if terms.get("resent") == "anew":
            terms["changes"] = False
        namespace = {**namespace, "answered_by": reply, "terms": msgspec.convert(terms, Terms)}
        kind = super().__new__(mcls, name, bases, namespace, **said)
        mcls.kinds.append(typing.cast(Any, kind))
        return kind


def _reply_in(bases: tuple[Any, ...]) -> Any:
    """Return the reply in the brackets of a base class; None without one."""
    said = (argument for base in bases for argument in typing.get_args(base))
    return next((reply for reply in said if not isinstance(reply, TypeVar)), None)


class RequestBase(Frozen, Generic[R], metaclass=RequestMeta, tag_field="request"):
    """An order to the engine, answered by R."""

    def is_answered_by(self, reply: object) -> TypeGuard[R]:
        """Return whether its class line declares a reply."""
        return isinstance(reply, type(self).answered_by)

    @property
    def made(self) -> str | None:
        """Name the session that it creates if none has that name."""
        return _at(self, type(self).terms.makes)

    @property
    def saved(self) -> str | None:
        """Name the checkpoint that it writes."""
        return _at(self, type(self).terms.saves)

    @property
    def forgets(self) -> bool:
        """Return whether it resets its session, so that nothing of the session's contents is needed."""
        return False

    @property
    def reserved(self) -> str | None:
        """Return why only the engine's own user may ask it; None where a person with a key may."""
        if type(self).terms.of_the_engine:
            return "This is for the user whose engine it is, on its machine: it concerns the sessions of all."
        return None

    @property
    def needs_others(self) -> str | None:
        """Return why an engine without other persons cannot do it; None for what one person asks alone."""
        return None


def _at(request: RequestBase[Any], field: str | None) -> str | None:
    return None if field is None else getattr(request, field)


class SessionRequest(RequestBase[R], Generic[R]):
    """An order that concerns one session."""

    session: SessionName


class OwnerRequest(SessionRequest[R], Generic[R], kw_only=True):
    """An order that may end a session, or its contents: on a session of another notebook only with `force`. A server
    names the kernel and the notebook that it asks for; other clients have named theirs in Hello."""

    force: bool = False
    for_holder: OwnName | None = None
    for_notebook: NotebookPath | None = None

    @property
    def deed(self) -> str | None:
        """Name its effect that is reserved to its notebook, or to another's with force; None without such an effect."""
        return None


class StopRequest(SessionRequest[R], Generic[R], kw_only=True):
    """An order for the stop that its caller sees. Refused where the session is at another stop, or another edition of
    it, by then; None is for any stop."""

    stop: StopIdentity | None = None
