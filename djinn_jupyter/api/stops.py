"""The results of a run: Paused inside a forward pass, or Finished; Interrupted after a KeyboardInterrupt.

Values, logits and lens are not in the reply; they are fetched on access, while the session is still at that stop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import msgspec

from djinn_jupyter.api import arrays, copies, influences
from djinn_jupyter.api.looks import Effect, Lens, Snapshot, spell_top
from djinn_jupyter.api.names import Digests, digests_of, labelled
from djinn_jupyter.api.tables import Displayed, Listing
from djinn_jupyter.displayed import ShownError
from djinn_jupyter.errors import DjinnError, IllegalMove
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import FinishReason, PauseReason, RuleDescription, StopDescription, StopIdentity, TopToken
from djinn_jupyter.wire.readings import Pooled
from djinn_jupyter.wire.replies import Compared, FiguresRead, History
from djinn_jupyter.wire.texts import in_quotes

if TYPE_CHECKING:
    import numpy as np

    from djinn_jupyter.link.channel import Channel


SHOWN_CHARACTERS = 60


class StoppedSession(Protocol):
    """The session of a stop, as its stops use it."""

    name: str
    moves: int
    changes: int

    @property
    def label(self) -> str: ...

    @property
    def channel(self) -> Channel: ...

    def inspect(self, *, positions: Any = ...) -> Snapshot: ...

    def lens(self, k: int = ..., *, positions: Any = ...) -> Lens: ...

    def effect(self, top: int = ..., *, tokens: Iterable[str | int] = ...) -> Effect: ...

    def all_logits(self) -> np.ndarray[Any, Any]: ...

    def metrics(self, *texts: str) -> tuple[float, ...]: ...


class Generated(copies.ReadsSession, Displayed):
    """The probabilities of the new tokens of a run, finished or stopped."""

    reply: replies.Paused | replies.Finished
    session: StoppedSession
    _moved_on: str  # the error of a late reading

    @property
    def _viewed(self) -> replies.Paused | replies.Finished:
        return self.reply

    @property
    def _digests(self) -> Digests:
        return digests_of(self.session.channel)

    @property
    def logprobs(self) -> tuple[float | None, ...]:
        """Log-probability of each new token so far under the model's own logits (fp32, before temperature)."""
        return self.reply.log_probabilities

    @property
    def probabilities(self) -> tuple[float | None, ...]:
        """The same as probabilities."""
        return tuple(None if one is None else math.exp(one) for one in self.logprobs)

    def _require_read_here(self, read: StopIdentity) -> None:
        """Raise IllegalMove where a value was read from another stop, because another handle has moved the session."""
        if read.number != self.reply.stop.number:
            raise IllegalMove(self._moved_on)


class Paused(Generated):
    """A stopped forward pass, after `layer` layers. `reply` is the wire's own value; its fields are attributes here.
    `site` is in the caller's spelling, and `shape`, `norms` and `values` are of its selected heads or features. `norms`
    are L2 norms by position. `values` are the numbers by position where each position has one (a single feature), else
    None."""

    _view = "stop_view"

    reply: replies.Paused

    def __init__(self, session: StoppedSession, reply: replies.Paused, move: int) -> None:
        vars(self).update(msgspec.structs.asdict(reply))  # every field; the lines below declare types
        self.session, self.reply = session, reply
        self._move = move
        self._hidden: tuple[int, np.ndarray[Any, Any]] | None = None
        self.site: str = reply.site
        self.reason: PauseReason = reply.reason
        self.step, self.layer, self.layers = reply.step, reply.layer, reply.layers
        self.positions, self.tokens, self.texts = reply.positions, reply.tokens, reply.texts
        self.prompt_tokens, self.prompt_text, self.new_text = reply.prompt_tokens, reply.prompt_text, reply.new_text
        self.shape, self.axes, self.dtype = reply.shape, reply.axes, reply.dtype
        self.norms, self.values = reply.norms, reply.values
        self.edits, self.influences = reply.edits, reply.influences
        self._moved_on = (
            f"Session {in_quotes(session.label)} has moved on from {reply.site} (step {reply.step}): "
            "what was not fetched then is gone; go back with back()."
        )

    @property
    def text(self) -> str:
        """The text of the prompt and the new tokens so far."""
        return self.prompt_text + self.new_text

    @property
    def hidden(self) -> np.ndarray[Any, Any]:
        """The value at the stop, [positions, features] (or with heads between), with the edits so far. IllegalMove
        where the session has moved on before it was fetched."""
        self._require_present()
        changes = self.session.changes
        if self._hidden is None or self._hidden[0] != changes:
            seen = self.session.inspect()
            self._require_read_here(seen.reply.snapshot.stop)
            self._hidden = (changes, seen.value)
        return self._hidden[1]

    def lens(self, k: int = 5, positions: Any = None) -> Lens:
        """Return the `k` most probable next tokens at each position, as in `session.lens`. IllegalMove where the
        session has moved on."""
        self._require_present()
        lens = self.session.lens(k, positions=positions)
        self._require_read_here(lens.reply.stop)
        return lens

    def effect(self, top: int = 5, *, tokens: Iterable[str | int] = ()) -> Effect:
        """Measure the next token without and with the edits, like `session.effect`. IllegalMove after a later move."""
        self._require_present()
        effect = self.session.effect(top, tokens=tokens)
        self._require_read_here(effect.reply.stop)
        return effect

    def _require_present(self) -> None:
        if self.session.moves != self._move:
            raise IllegalMove(self._moved_on)

    def __repr__(self) -> str:
        first, last = self.positions[0], self.positions[-1]
        place = f"position {first}" if first == last else f"positions {first}..{last}"
        said = (
            f"Paused at {labelled(self.site)} ({self.reason}): session {self.session.label}, step {self.step}, "
            f"{place}, {self.layer} of {self.layers} layers run, after {_end_of(self.text)!r}"
        )
        return "\n  ".join([said, *influences.influence_lines(self.influences, self.edits)])


class Finished(Generated):
    """A run that reached its end. `tokens` are the new ids, `top` the most probable next tokens."""

    _view = "result_view"

    reply: replies.Finished

    def __init__(
        self, session: StoppedSession, reply: replies.Finished, move: int, logits: Literal["last", "all"] = "last"
    ) -> None:
        vars(self).update(msgspec.structs.asdict(reply))
        self.session, self.reply = session, reply
        self._move, self._wanted = move, logits
        self._logits: np.ndarray[Any, Any] | None = None
        self.reason: FinishReason = reply.reason
        self.detail = reply.detail
        self.tokens, self.texts, self.text = reply.tokens, reply.texts, reply.text
        self.prompt_tokens, self.prompt_texts = reply.prompt_tokens, reply.prompt_texts
        self.prompt_text: str = reply.prompt_text
        self.top: Listing[TopToken] = Listing(reply.top)
        self.rules: Listing[RuleDescription] = Listing(reply.rules)
        self.ignored_defaults, self.layers_run, self.passes = reply.ignored_defaults, reply.layers_run, reply.passes
        self.shared, self.note = reply.shared, reply.note
        self.largest_difference = reply.largest_difference
        self._moved_on = (
            f"Session {in_quotes(session.label)} has moved on: the logits of this run were not fetched then."
        )

    @property
    def logits(self) -> np.ndarray[Any, Any]:
        """The logits at the last position, fp32 [vocabulary]; or at all, [positions, vocabulary], if requested."""
        return self.fetch_logits()

    def fetch_logits(self) -> np.ndarray[Any, Any]:
        """Return `logits`, fp32 [vocabulary], fetching them if needed; IllegalMove once the session has moved on."""
        if self._logits is None:
            if self.session.moves != self._move:
                raise IllegalMove(self._moved_on)
            self._logits = self.session.all_logits() if self._wanted == "all" else self._last_logits()
        return self._logits

    def _last_logits(self) -> np.ndarray[Any, Any]:
        read = ask_for(self.session.channel, ask.ReadLogits(session=self.session.name))
        self._require_read_here(read.stop)
        return arrays.to_numpy(read.logits)

    def fetch_all_logits(self) -> np.ndarray[Any, Any]:
        """Make `logits` those of all positions, fp32 [positions, vocabulary], and return them."""
        self._wanted, self._logits = "all", None
        return self.fetch_logits()

    def __repr__(self) -> str:
        detail = f", {self.detail}" if self.detail else ""
        top = f", then {spell_top(self.top[:1])}" if self.top else ""
        return f"Finished ({self.reason}{detail}): {len(self.tokens)} new tokens {self.text!r}{top}"


Stop = Paused | Finished


class Interrupted(KeyboardInterrupt, ShownError):
    """Raised after a KeyboardInterrupt during a run. The run was stopped and the session is intact, at `stop`."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        super().__init__(f"Session {in_quotes(stop.session.label)} is intact. {stop!r}")

    def __reduce__(self) -> tuple[type[Self], tuple[Stop]]:
        return type(self), (self.stop,)


class BatchInterrupted(KeyboardInterrupt, ShownError):
    """Raised after a KeyboardInterrupt during a batch. `rows` has, in order, for each row: its stop (at its end or its
    pause), its error, or None where it had not started."""

    def __init__(self, rows: Sequence[Stop | DjinnError | None]) -> None:
        self.rows = list(rows)
        finished = sum(isinstance(row, Finished) for row in self.rows)
        super().__init__(f"{finished} of {len(self.rows)} rows had finished; the others are intact where they stopped.")

    def __reduce__(self) -> tuple[type[Self], tuple[Sequence[Stop | DjinnError | None]]]:
        return type(self), (self.rows,)


def _end_of(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else "..." + text[-SHOWN_CHARACTERS:]


def read_figures(
    session: StoppedSession, site: str, *, positions: tuple[int, ...] | None = None, each: bool = False
) -> FiguresRead:
    """Return the figures of a value, on request with those of each position."""
    request = ask.ReadFigures(session=session.name, site=site, positions=positions, each=each)
    return ask_for(session.channel, request)


def compare(session: StoppedSession, other: StoppedSession, *, last: int) -> Compared:
    """Return the distance of the stopped values of two sessions of one engine, with the distances at the `last`
    positions that both passes have. UsageError where they are stopped at other sites."""
    return ask_for(session.channel, ask.Compare(session=session.name, other=other.name, last=last))


# A value as a view draws it, pooled by the engine. Computations use `inspect`.


def read_pooled(
    session: StoppedSession,
    site: str | None = None,
    *,
    positions: tuple[int, ...] | None = None,
    ahead: bool = False,
    alone: Sequence[int] | None = None,
    last: int = 0,
    rounded: bool = True,
) -> Pooled:
    """Return a value for a card's picture, by default the stopped one, with a row for each position in `alone`, and the
    `last` positions whole. Cells are exact unless `rounded`."""
    among = None if alone is None else tuple(alone)
    request = ask.ReadPooled(
        session=session.name, site=site, positions=positions, ahead=ahead, alone=among, last=last, rounded=rounded
    )
    return ask_for(session.channel, request).pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternCells:
    """The most that a card draws of a pattern: the first `heads`, with so many `cells` altogether, and for each head
    the `strongest` keys of the last `queries`."""

    heads: int
    cells: int
    strongest: int
    queries: int


def read_pattern(
    session: StoppedSession,
    site: str | None,
    drawn: PatternCells,
    *,
    positions: tuple[int, ...] | None = None,
    ahead: bool = False,
    rounded: bool = True,
) -> Pooled:
    """Return a pattern for a card, head by head."""
    request = ask.ReadPooled(
        session=session.name,
        site=site,
        positions=positions,
        ahead=ahead,
        rows=1,
        columns=1,  # all heads in one picture, which is not drawn
        heads=drawn.cells,
        most_heads=drawn.heads,
        strongest=drawn.strongest,
        strongest_at=drawn.queries,
        rounded=rounded,
    )
    return ask_for(session.channel, request).pooled


class StopHistory(Listing[StopDescription]):
    """The stops of a session, oldest first: a tuple, and a table. `present` is the index of the present stop, None
    while the session runs or after it finished."""

    present: int | None

    @classmethod
    def of(cls, reply: History) -> Self:
        """Return the stops of a reply."""
        made = cls(reply.stops)
        made.present = reply.present
        return made

    @property
    def stops(self) -> tuple[StopDescription, ...]:
        """The stops as a plain tuple."""
        return tuple(self)

    def columns(self) -> dict[str, list[Any]]:
        """Return the fields of the stops as lists by column, and `present`: True for the present stop. Empty without a
        stop."""
        found = super().columns()
        return {**found, "present": [stop.index == self.present for stop in self]} if self else found
