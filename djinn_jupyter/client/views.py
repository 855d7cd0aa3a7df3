"""Readings of a stopped pass for display: values as numpy arrays, `repr` as text tables, no ids or addresses.

Each keeps the wire's own value as `reply`, for the widgets.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.frames import Tabular, in_columns
from djinn_jupyter.client.influences import influence_lines
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.nouns import LensRow, TopToken
from djinn_jupyter.wire.replies import Effect as EffectReply
from djinn_jupyter.wire.replies import Inspected, LensRead, WatchRead
from djinn_jupyter.wire.watches import spell_watch

if TYPE_CHECKING:
    import numpy as np


SHIFT: Final = ("token", "text", "probability_before", "probability_after", "logit_before", "logit_after")


class Snapshot:
    """A copy of a site's value: `value` with the axes that `axes` spells, positions first. It cannot be resumed."""

    def __init__(self, reply: Inspected) -> None:
        self.reply = reply
        read = reply.snapshot
        self.site, self.axes, self.dtype = read.site, read.axes, read.dtype
        self.positions, self.exactness = read.positions, read.exactness

    @cached_property
    def value(self) -> np.ndarray[Any, Any]:
        """The values, [positions, ...], in the model's dtype."""
        return to_numpy(self.reply.snapshot.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.reply.snapshot.value.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.value if dtype is None else self.value.astype(dtype)

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.shape)
        return f"Snapshot of {self.site}: {shape} ({self.axes}), {self.dtype}, {self.exactness}"


class Lens(Tabular):
    """The model's own epilogue applied to a residual value: for each position its most probable next tokens."""

    def __init__(self, reply: LensRead) -> None:
        self.reply = reply
        self.site = reply.site
        self.rows: tuple[LensRow, ...] = reply.rows
        self.notes = reply.notes

    def columns(self) -> dict[str, list[Any]]:
        """Return the predictions as lists by column: the position, the token there, the rank of the next token (None of
        one that was asked for), that token, its probability and its logit."""
        rows = [
            (row.position, row.text, rank, next_token.text, next_token.probability, next_token.logit)
            for row in self.rows
            for rank, next_token in [*enumerate(row.top, 1), *((None, one) for one in row.chosen)]
        ]
        return in_columns(("position", "token", "rank", "next", "probability", "logit"), rows)

    def __repr__(self) -> str:
        lines = [f"{row.position:>5} {row.text!r:<16} {spell_top(row.top)}" for row in self.rows]
        return "\n".join([f"Lens at {self.site}", *lines, *self.notes])


class Effect(Tabular):
    """The next-token distribution without and with the edits of the present stop; `kl` in nats."""

    def __init__(self, reply: EffectReply) -> None:
        self.reply = reply
        read = reply.effect
        self.before, self.after, self.kl = read.before, read.after, read.kl
        self.top1_changed, self.logit_difference_norm = read.top1_changed, read.logit_difference_norm
        self.shifts, self.chosen = read.shifts, read.chosen
        self.site, self.edits, self.influences = reply.site, reply.edits, reply.influences

    def columns(self) -> dict[str, list[Any]]:
        """Return the tokens that shift most, and those that were asked for, as lists by column: token and text, and its
        probability and logit before and after."""
        rows = [
            (one.token, one.text, one.probability_before, one.probability_after, one.logit_before, one.logit_after)
            for one in dict.fromkeys((*self.shifts, *self.chosen))
        ]
        return in_columns(SHIFT, rows)

    def __repr__(self) -> str:
        said = (
            f"Effect on the next token at {self.site}, session {label(self.reply.stop.session)}: KL {self.kl:.4g}, "
            f"top token {'changed' if self.top1_changed else 'unchanged'}\n"
            f"  without {spell_top(self.before)}\n"
            f"  with    {spell_top(self.after)}"
        )
        return "\n  ".join([said, *influence_lines(self.influences, self.edits)])


class Watched(Tabular):
    """All recorded passes of a site: `values[i]` covers the absolute `positions[i]` of run `runs[i]`; runs are counted
    from the session's first prompt, run 1. With a `direction` each value has one component a position."""

    def __init__(self, reply: WatchRead) -> None:
        self.reply = reply
        self.site, self.axes, self.positions = reply.watch.site, reply.axes, reply.positions
        self.direction = reply.watch.direction
        self.runs = reply.runs
        self.passes_left_out = reply.watch.passes_left_out

    @cached_property
    def values(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The value of each pass, [positions, ...], in the model's dtype; with a direction [positions]."""
        return tuple(to_numpy(array) for array in self.reply.values)

    def columns(self) -> dict[str, list[Any]]:
        """Return the passes as lists by column, with a row for each position of each: the number of the pass, its run,
        the position, and its `value`; of several features (heads and features one after the other) `value 0`, ...; None
        where another pass has more."""
        places = [(n, self.runs[n], at) for n, positions in enumerate(self.positions) for at in positions]
        rows = [row.reshape(-1).tolist() for value in self.values for row in value]
        width = max(map(len, rows), default=0)
        names = ["value"] if self.direction is not None else [f"value {number}" for number in range(width)]
        wide = [[*row, *[None] * (width - len(row))] for row in rows]
        return in_columns(("pass", "run", "position"), places) | in_columns(names, wide)

    def __len__(self) -> int:
        return len(self.reply.values)

    def __repr__(self) -> str:
        left_out = f", {self.passes_left_out} left out by the byte cap" if self.passes_left_out else ""
        runs = len(set(self.runs))
        watched = spell_watch(self.site, self.direction)
        return f"Watched {watched}: {len(self)} passes of {runs} runs ({self.axes}){left_out}"


def spell_top(top: tuple[TopToken, ...]) -> str:
    return "  ".join(f"{entry.text!r} {entry.probability:.3f}" for entry in top)
