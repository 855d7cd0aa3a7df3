"""The state of a stopped forward pass, as a value. Runs no model.

Shapes: h_1TD hidden states of one session (batch 1, T positions of the pass, D features).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from djinn_jupyter.engine.forward.kept_attention import Attended
from djinn_jupyter.engine.interventions.change import Change
from djinn_jupyter.engine.memory.kv.states import LayerState
from djinn_jupyter.engine.model.hooks.taps import Tap

States = Mapping[int, LayerState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """An override: a value that an edit or a rule put in place of the computed one. The model gets `raw` at `tap`;
    `changes` are the edits and rules that made it, in order."""

    tap: Tap
    raw: Tensor
    changes: tuple[Change, ...] = ()

    def read(self) -> Override:
        return replace(self, changes=tuple(change.read() for change in self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One forward pass over `tokens`, stopped before layer `boundary` (layers below it have run, the others have not).

    `hidden` is h_1TD at the entry of layer `boundary`; None only at the very start of a pass. `tap` is the tap it
    stopped at and `raw` the value there, None where no halt stopped it. A stop inside layer n has boundary n: resuming
    runs layer n again from its entry and puts `raw` back at `tap`. `overrides` are those of this pass so far.
    `shared` holds, by argument, what layers pass to each other besides the hidden state: the contents of a mapping, or
    the value that the layer before `boundary` returned. `states` are all convolution and recurrent states at this frame
    and `start_states` those at the start of the pass; None where the model has none or where the live ones are valid.
    `attended` is what the attention of layer `boundary` returned, where the stop is behind it in that layer.
    Tensors of a frame are never written to: code that runs from them copies them first.
    """

    tokens: tuple[int, ...]
    committed: int
    step: int
    boundary: int = 0
    hidden: Tensor | None = None
    tap: Tap | None = None
    raw: Tensor | None = None
    overrides: tuple[Override, ...] = ()
    shared: Mapping[int | str, Any] = field(default_factory=dict)
    states: States | None = None
    start_states: States | None = None
    attended: Attended | None = None

    def read(self) -> Frame:
        """Return the same frame with the sizes of its changes read from the device, for a pass that is not running."""
        return replace(self, overrides=tuple(override.read() for override in self.overrides))

    @property
    def positions(self) -> range:
        """Absolute positions of this pass."""
        return range(self.committed, self.end)

    @property
    def end(self) -> int:
        """One past its last position."""
        return self.committed + len(self.tokens)

    @property
    def inside(self) -> bool:
        """True where it stands within a layer, the prologue or the epilogue, not between two layers."""
        return self.tap is not None and self.tap.kind != "boundary"

    def at_start(self) -> Frame:
        """Return the same pass before anything ran. Keeps the overrides, so that a rerun takes the same
        path."""
        return replace(
            self, boundary=0, hidden=None, tap=None, raw=None, shared={}, states=self.start_states, attended=None
        )

    def with_value(self, raw: Tensor, change: Change) -> Frame:
        """Return the same stop with another value at its tap and one more change recorded."""
        assert self.tap is not None
        kept = tuple(override for override in self.overrides if override.tap.site != self.tap.site)
        before = tuple(c for override in self.overrides if override.tap.site == self.tap.site for c in override.changes)
        overrides = (*kept, Override(tap=self.tap, raw=raw, changes=(*before, change)))
        if self.inside:
            return replace(self, raw=raw, overrides=overrides)
        return replace(self, raw=raw, hidden=raw, overrides=overrides)
