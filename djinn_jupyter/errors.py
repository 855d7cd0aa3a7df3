"""Everything that can go wrong, as one tree.

DjinnError
├── UsageError               the request cannot be meant: a person has to change it
│   ├── UnknownSite          no such point, layer, head or module in this model
│   ├── UnknownSession       no session of that name
│   ├── UnknownBreakpoint    no breakpoint there to clear
│   ├── UnknownRule          no steering rule of that number
│   ├── UnknownCheckpoint    no checkpoint of that name
│   ├── InvalidCondition     a condition that does not parse or names nothing
│   ├── InvalidEdit          an edit whose shape, dtype, positions or values do not fit
│   ├── FingerprintsDiffer   a session would go on with other bits in the engine that it is to move to
│   ├── PromptTooLong        more tokens than the model has positions for
│   └── NoTokenizer          text was given to a model saved without a tokenizer
├── SweepEnded               a sweep that ended before its last cell; it has the grid of the finished ones
├── MeasurementEnded         losses that ended before the last prompt; it has those of the first ones
├── BatchEnded               some rows of a batch failed; it has the others
├── IllegalMove              the session is not in a state from which this verb is possible
├── SessionHeld              a live session that another kernel holds
├── OverQuota                a person has all that they may have of the engine, or this would be more
├── SessionsWouldSuffer      a verb that hurts sessions of others, without --force
├── ModelError
│   ├── ModelNotFound        neither the demo, nor a folder, nor a cached hub name
│   ├── ModelRefused         a family that cannot be served exactly: the reason, and what to do
│   └── ModelDoesNotFit      weights larger than the device memory
├── MemoryShortage
│   ├── SlabFull             no free page for what was asked
│   ├── TierFull             host and disk have no room for what has to leave the device
│   └── OutOfDeviceMemory    the device refused an allocation inside a forward pass
├── StorageError
│   ├── StorageFailed        the disk refused, or gave back other bytes than were written
│   └── CheckpointRefused    a file that is no checkpoint of this model, or is damaged
├── EngineError
│   ├── EngineUnavailable    no engine process answers (died, killed, never started)
│   ├── EngineBroken         the engine's accounting contradicts itself: it begins anew, from what it has kept
│   ├── ClaimLost            another engine has taken over the sessions that this one kept in a shared journal
│   ├── KeyRefused           an engine does not admit the key of this person, or has another key than the trusted one
│   ├── EngineStartFailed    the process ended before it was ready; carries its last log lines
│   └── VersionMismatch      client and engine speak different versions
├── TrainingFailed           the process that trains a module ended by itself; its last line
├── WireError
│   ├── MalformedMessage     bytes that are no message of ours
│   ├── MessageTooLarge      more bytes than the limit
│   └── NotEncodable         a value that no message can carry
└── MissingDependency        an optional part (torch, ipywidgets) is not installed

Every class has a stable `code`, its own name, by which a `Failed` reply is raised again at the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.displayed import ShownError

if TYPE_CHECKING:
    from typing import Self


class DjinnError(Exception, ShownError):
    """Base of all errors of this package. The text is one sentence: what is wrong and what to do. `request` is the id
    of the request that it ended, by which `djinn log --request` finds what the engine did for it."""

    request: str | None = None

    @property
    def code(self) -> str:
        """The name of its class, by which it crosses the wire."""
        return type(self).__name__


class UsageError(DjinnError): ...


class UnknownSite(UsageError): ...


class UnknownSession(UsageError): ...


class UnknownBreakpoint(UsageError): ...


class UnknownRule(UsageError): ...


class InvalidCondition(UsageError): ...


class InvalidEdit(UsageError): ...


class FingerprintsDiffer(UsageError): ...


class PromptTooLong(UsageError): ...


class UnknownCheckpoint(UsageError): ...


class NoTokenizer(UsageError): ...


class SweepEnded(DjinnError):
    def __init__(self, message: str, grid: Any = None) -> None:
        super().__init__(message)
        self.grid = grid


class MeasurementEnded(DjinnError):
    """`kept` are the Losses of the prompts that were done."""

    def __init__(self, message: str, kept: Any = None) -> None:
        super().__init__(message)
        self.kept = kept


class BatchEnded(DjinnError):
    """`rows` has, in order, the stop of each row, or the error that ended it."""

    def __init__(self, message: str, rows: Any = ()) -> None:
        super().__init__(message)
        self.rows = rows


class IllegalMove(DjinnError): ...


class SessionHeld(DjinnError): ...


class OverQuota(DjinnError): ...


class SessionsWouldSuffer(DjinnError): ...


class ModelError(DjinnError): ...


class ModelNotFound(ModelError): ...


HOOKS: Final = "read it in plain transformers, with forward hooks that are set before the pass."


class ModelRefused(ModelError):
    @classmethod
    def inexact(cls, name: str, reason: str, instead: str = HOOKS.capitalize()) -> Self:
        """Return the refusal of a model that cannot be stopped and resumed exactly: the reason and the remedy."""
        return cls(f"{name} cannot be served exactly: {reason}. {instead}")


class ModelDoesNotFit(ModelError): ...


class MemoryShortage(DjinnError): ...


class SlabFull(MemoryShortage): ...


class TierFull(MemoryShortage): ...


class OutOfDeviceMemory(MemoryShortage): ...


class StorageError(DjinnError): ...


class StorageFailed(StorageError): ...


class CheckpointRefused(StorageError): ...


class EngineError(DjinnError): ...


class EngineUnavailable(EngineError): ...


class EngineBroken(EngineError): ...


class ClaimLost(EngineError): ...


class KeyRefused(EngineError): ...


class EngineStartFailed(EngineError): ...


class VersionMismatch(EngineError): ...


class TrainingFailed(DjinnError): ...


class WireError(DjinnError): ...


class MalformedMessage(WireError): ...


class MessageTooLarge(WireError): ...


class NotEncodable(WireError): ...


class MissingDependency(DjinnError): ...


def _tree(root: type[DjinnError]) -> dict[str, type[DjinnError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[DjinnError]] = _tree(DjinnError)


def from_code(code: str, message: str) -> DjinnError:
    """Return the error that a `Failed` reply stands for. An unknown code becomes the base class, with that code."""
    kind = BY_CODE.get(code)
    return kind(message) if kind is not None else DjinnError(f"{code}: {message}")
