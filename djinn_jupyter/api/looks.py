"""Readings at a stop: the logit lens, the effect of edits, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from djinn_jupyter.api import arguments, arrays, influences, likeness, result
from djinn_jupyter.api.names import labelled
from djinn_jupyter.api.tables import in_columns, numbered
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel, ask_for, expect
from djinn_jupyter.wire.looks import LookRecipe
from djinn_jupyter.wire.nouns import LensRow, TopToken
from djinn_jupyter.wire.readings import TokenShift
from djinn_jupyter.wire.replies import Effect as EffectReply
from djinn_jupyter.wire.replies import Inspected, LensRead
from djinn_jupyter.wire.texts import label

if TYPE_CHECKING:
    import numpy as np


def spell_top(top: tuple[TopToken, ...]) -> str:
    return "  ".join(f"{entry.text!r} {entry.probability:.3f}" for entry in top) or "-"


# Readings at a stop: their base class, the logit lens, the effect of edits; and how they are reproduced.

SHIFT: Final = ("token", "text", "probability_before", "probability_after", "logit_before", "logit_after")
NUMBERS: Final = tuple(name for name in SHIFT if name != "text")
ReplyHere = TypeVar("ReplyHere", Inspected, LensRead, EffectReply)


class StopLook(result.Result):
    """A reading at a stop. It has a recipe, with the edits made there, where all passes were plain or steered by rules
    and its own pass is plain."""

    reply: Any

    def __post_init__(self) -> None:
        made = self._recipe = self.reply.made
        self._unmade = self.reply.unmade
        self.tokens = self._lines = () if made is None else (made.line,)

    def _replied_again(self, channel: Channel, reply: Any) -> Any:
        return looked_again(channel, reply.made, type(reply))

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the numbers follow from: every measurement's circumstances, the stop, its edits, and the request."""
        found = super().recipe
        assert self._recipe is not None
        asked = {name: value for name, value in msgspec.structs.asdict(self._recipe.asked).items() if name != "session"}
        fed = likeness.fed_recipe(self._recipe.passes)
        return {**found, **fed, "stop": self._recipe.site, "edits": list(self._recipe.edits), "asked": asked}


class Lens(StopLook):
    """The model's own epilogue applied to a residual value: for each position its most probable next tokens. `values`
    has a row per token with its id, probability and logit, float64."""

    _view = "lens_card"
    ending = ".lens.djinn"
    named = "file of a lens"
    _tabled = True
    reply: LensRead

    def __post_init__(self) -> None:
        super().__post_init__()
        reply = self.reply
        self.site = reply.site
        self.rows: tuple[LensRow, ...] = reply.rows
        self.notes = reply.notes
        self.values = _numbers([(one.token, one.probability, one.logit) for _, _, one in self._told()])

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the position and the rank of the next token of the number at this index (None for a requested one)."""
        row, rank, _ = self._told()[index[0]]
        return {"position": row.position, "rank": rank}

    def _told(self) -> list[tuple[LensRow, int | None, TopToken]]:
        return [
            (row, rank, next_token)
            for row in self.rows
            for rank, next_token in [*enumerate(row.top, 1), *((None, one) for one in row.chosen)]
        ]

    def columns(self) -> dict[str, list[Any]]:
        """Return the predictions as lists by column: the position, the token there, the rank of the next token (None
        for a requested one), that token, its probability and its logit."""
        rows = [
            (row.position, row.text, rank, next_token.text, next_token.probability, next_token.logit)
            for row, rank, next_token in self._told()
        ]
        return in_columns(("position", "token", "rank", "next", "probability", "logit"), rows)

    @arguments.typed
    def top(self, count: int = result.STRONGEST) -> list[tuple[int, str, float]]:
        """Return the position, the text and the probability of the `count` most probable next tokens at all positions,
        the most probable first. UsageError."""
        told = self._told()
        found = arrays.largest(self.values[:, 1], count)
        return [(told[at][0].position, told[at][2].text, probability) for (at,), probability in found]

    def __repr__(self) -> str:
        lines = [f"{row.position:>5} {row.text!r:<16} {spell_top(row.top)}" for row in self.rows]
        return "\n".join([f"Lens at {labelled(self.site)}", *lines, *self.notes])


class Effect(StopLook):
    """The next-token distribution without and with the edits of the present stop; `kl` in nats. `values` has a row per
    token with the numbers of `columns()`, float64; the first has `kl`, the norm of the logits' change, and zeros."""

    _view = "effect_card"
    ending = ".effect.djinn"
    named = "file of an effect"
    _tabled = True
    reply: EffectReply

    def __post_init__(self) -> None:
        super().__post_init__()
        reply = self.reply
        read = reply.effect
        self.before, self.after, self.kl = read.before, read.after, read.kl
        self.top1_changed, self.logit_difference_norm = read.top1_changed, read.logit_difference_norm
        self.shifts, self.chosen = read.shifts, read.chosen
        self.site, self.edits, self.influences = reply.site, reply.edits, reply.influences
        rows = [[getattr(one, name) for name in NUMBERS] for one in self._told()]
        self.values = _numbers([[self.kl, self.logit_difference_norm, 0, 0, 0], *rows])

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the token of the number at this index, or "all" for numbers of the whole distribution."""
        return {"token": self._told()[index[0] - 1].text if index[0] else "all"}

    def _told(self) -> list[TokenShift]:
        return list(dict.fromkeys((*self.shifts, *self.chosen)))

    def columns(self) -> dict[str, list[Any]]:
        """Return the tokens that shift most, and the requested ones, as lists by column: token and text, and its
        probability and logit before and after."""
        return in_columns(SHIFT, [[getattr(one, name) for name in SHIFT] for one in self._told()])

    @arguments.typed
    def top(self, count: int = result.STRONGEST) -> list[tuple[str, float]]:
        """Return the text and the change of the `count` tokens whose probability changes most, by change.
        UsageError."""
        found = arrays.largest(self.values[1:, 2] - self.values[1:, 1], count)
        return [(self._told()[at].text, change) for (at,), change in found]

    def __repr__(self) -> str:
        said = (
            f"Effect on the next token at {labelled(self.site)}, session {label(self.reply.stop.session)}: "
            f"KL {self.kl:.4g}, top token {'changed' if self.top1_changed else 'unchanged'}\n"
            f"  without {spell_top(self.before)}\n"
            f"  with    {spell_top(self.after)}"
        )
        return "\n  ".join([said, *influences.influence_lines(self.influences, self.edits)])


def _numbers(rows: Sequence[Sequence[float]]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.array(rows, dtype=np.float64)


def looked_again(channel: Channel, made: LookRecipe | None, kind: type[ReplyHere]) -> ReplyHere:
    """Return the reply to the same request at the stop of a recipe."""
    assert made is not None
    likeness.require_modules(channel, made.made.modules)
    with likeness.stopped_again(channel, "look", made.made, made.line, made.passes, made.site) as (name, stop):
        if stop.site != made.site:
            raise UsageError(f"it was read at {made.site}, and this model stops at {stop.site}.")
        for edit in made.edits:
            ask_for(channel, msgspec.structs.replace(edit, session=name))
        return expect(ask_for(channel, msgspec.structs.replace(made.asked, session=name)), kind)


class Snapshot(StopLook):
    """A copy of a site's value: `value` with the axes that `axes` spells, positions first. It cannot be resumed."""

    _view = "snapshot_card"
    ending = ".snapshot.djinn"
    named = "file of a snapshot"
    reply: Inspected

    def __post_init__(self) -> None:
        super().__post_init__()
        read = self.reply.snapshot
        self.site, self.axes, self.dtype = read.site, read.axes, read.dtype
        self.positions, self.exactness = read.positions, read.exactness

    @cached_property
    def values(self) -> np.ndarray[Any, Any]:  # type: ignore[override]  # read when it is asked for
        """The same as `value`, [positions, ...]."""
        return arrays.to_numpy(self.reply.snapshot.value)

    @property
    def value(self) -> np.ndarray[Any, Any]:
        """The values, [positions, ...], in the model's dtype."""
        return self.values

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.reply.snapshot.value.shape

    def check(self) -> None:
        """Raise ValueError where the value does not match its positions."""
        read = self.reply.snapshot
        if read.value.dtype != read.dtype or read.value.shape[:1] != (len(read.positions),):
            raise ValueError("its value is not that of its positions")

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the position of the number at this index, and its index within the position."""
        row, *rest = index
        number = 0
        for size, at in zip(self.shape[1:], rest, strict=True):
            number = number * size + at
        return {"position": self.positions[row], "value": number}

    def columns(self) -> dict[str, list[Any]]:
        """Return the value as lists by column, with a row for each position: the position, and `value 0`, ... (heads
        and features one after the other)."""
        rows = self.values.reshape(len(self.positions), -1).tolist()
        return in_columns(("position",), [(at,) for at in self.positions]) | numbered(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.value if dtype is None else self.value.astype(dtype)

    def told(self) -> dict[str, list[Any]]:
        """Return no table: a value may have millions of numbers."""
        return {}

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.shape)
        return f"Snapshot of {labelled(self.site)}: {shape} ({self.axes}), {self.dtype}, {self.exactness}"
