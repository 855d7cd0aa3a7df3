"""Every engine is asked before work is spread over them, so that one which refuses it does so before any has begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.errors import DjinnError, EngineUnavailable, UsageError
from djinn_jupyter.wire.checking import Checked
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.request_base import SessionRequest

Alike = tuple[tuple[str, str], ...]


class CheckedEngine(Protocol):
    """An engine that is asked."""

    @property
    def channel(self) -> Channel: ...
    @property
    def entry(self) -> Entry | None: ...


Engine = TypeVar("Engine", bound=CheckedEngine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question whether an engine would begin a request, in a session with this adapter: `check` has the same
    fields, and asks it."""

    request: SessionRequest[Any]
    check: type[SessionRequest[Checked]]
    adapter: str | None

    def to(self, channel: Channel, kind: str) -> Checked:
        with temporary_session(channel, kind, self.adapter) as session:
            fields = {**msgspec.structs.asdict(self.request), "session": session}
            return ask_for(channel, self.check(**fields))


def engines_of_one_model(engine: Engine, beside: Sequence[Engine]) -> tuple[Engine, ...]:
    """Return the engines, each once. Raises UsageError for those of several models."""
    each = tuple({id(one.channel): one for one in (engine, *beside)}.values())
    served = [one.channel.welcome.model for one in each]
    models = sorted({f"{model.name} ({model.architecture})" for model in served})
    if len(models) > 1:
        raise UsageError(f"Work is spread over engines of one model; these serve {', '.join(models)}.")
    return each


def require_all(engines: Sequence[Engine], kind: str, question: Callable[[Engine], Question]) -> None:
    """Have each engine check the work. Raises the error of the first that refuses it, and UsageError where shards would
    not be of one model. One that is lost is passed over: others do its part."""
    alike: Alike | None = None
    for engine in engines:
        try:
            with _refused_by(engine, kind):
                found = question(engine).to(engine.channel, kind).alike
                alike = found if alike is None else alike
                _require_alike(alike, found)
        except EngineUnavailable:
            continue


def _require_alike(first: Alike, these: Alike) -> None:
    for (name, there), (_, here) in zip(first, these, strict=True):
        if there != here:
            raise UsageError(f"its {name} is {_short(here)}, and that of the engine asked first {_short(there)}.")


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


@contextmanager
def _refused_by(engine: CheckedEngine, kind: str) -> Iterator[None]:
    """Have an error say whose it is, and that nothing was begun."""
    try:
        yield
    except EngineUnavailable:
        raise
    except DjinnError as error:
        named = "An engine" if engine.entry is None else engine.entry.named
        said = type(error)(f"{named} refuses the {kind}, so that none has begun it: {error}")
        said.request = error.request
        raise said from error
