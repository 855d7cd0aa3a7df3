"""The state of a stopped forward pass, and the output of a layer's attention in it: a pass that continues from a later
stop in that layer does not compute attention again. Its keys and values are in the cache, like those of the layers
below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from djinn_jupyter.engine.memory.kv.geometry import LayerState
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.edits import Change

Attended = Tensor | tuple[Tensor | None, ...]
"""What an attention module returned: the output, and where it returned weights beside it, None in their place."""


def attention_of(anatomy: Anatomy, layer: int) -> nn.Module | None:
    """Return the part of a layer that computes its attention: the one that contains the keys. None where the layer has
    none, or computes them itself."""
    keys = anatomy.taps.get(("k", layer))
    if not isinstance(keys, Tap) or keys.module is None:
        return None
    parts = (part for part in anatomy.layers[layer].children() if part is not keys.module)
    return next((part for part in parts if any(one is keys.module for one in part.modules())), None)


@contextmanager
def noted(anatomy: Anatomy, layers: Iterable[int], note: Callable[[int, Attended], None]) -> Iterator[None]:
    """Call `note` with the output of each of these layers' attention, inside this block: in models whose layers pass on
    only the hidden state."""
    alone = not anatomy.mappings and not anatomy.handed
    with ExitStack() as stack:
        for layer in layers if alone else ():
            attention = attention_of(anatomy, layer)
            if attention is not None:
                stack.callback(attention.register_forward_hook(_noting(layer, note)).remove)
        yield


def _noting(layer: int, note: Callable[[int, Attended], None]) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            note(layer, output.clone())
        elif type(output) is tuple and output and isinstance(output[0], Tensor) and all(map(_is_passed_on, output[1:])):
            note(layer, (output[0].clone(), *(None for _ in output[1:])))

    return hook


def _is_passed_on(part: Any) -> bool:
    """True for weights [1, heads, positions, keys], and for other values that a layer does not compute with: DBRX's
    attention returns the MLP's input beside the residual."""
    return part is None or isinstance(part, Cache) or (isinstance(part, Tensor) and part.ndim == 4)


def handed_out(attended: Attended) -> Attended:
    """Return a copy for the layer, which may write into it."""
    if isinstance(attended, Tensor):
        return attended.clone()
    return tuple(None if part is None else part.clone() for part in attended)


# The state of a stopped forward pass, as a value. Runs no model. Shapes: h_1TD hidden states of one session (batch 1,
# T positions of the pass, D features).

States = Mapping[int, LayerState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """An override: a value of an edit or a rule in place of the computed one. The model gets `raw` at `tap`; `changes`
    are the edits and rules that made it, in order."""

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
        """True where it is within a layer, the prologue or the epilogue, not between two layers."""
        return self.tap is not None and self.tap.kind != "boundary"

    def at_start(self) -> Frame:
        """Return the same pass before anything ran. The overrides stay, so that a rerun takes the same path."""
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


# The module at whose output a pass stopped, and the attention before a stop in its layer: where the pass is entered
# there again, their outputs come from the frame, so that they are not computed twice. Attention runs again where a pass
# stopped within it, or at its own output.


@contextmanager
def passed_over(
    frame: Frame, anatomy: Anatomy, halting: Iterable[int], note: Callable[[int, Attended], None]
) -> Iterator[None]:
    """Make the module of the frame's stop, and the attention before it, return their outputs in the frame, once, inside
    this block. `note` gets attention's output in the layers `halting`. For a model without states besides keys and
    values."""
    tap, raw, attended = frame.tap, frame.raw, frame.attended
    with ExitStack() as stack:
        if attended is not None:
            attention = attention_of(anatomy, frame.boundary)
            assert attention is not None
            stack.enter_context(_handing_back(attention, lambda: handed_out(attended)))
        if tap is not None and raw is not None and tap.module is not None and _is_all_it_makes(tap, anatomy):
            stack.enter_context(_handing_back(tap.module, raw.clone))
        stack.enter_context(noted(anatomy, halting, note))
        yield


@contextmanager
def _handing_back(module: nn.Module, output: Callable[[], Any]) -> Iterator[None]:
    """Make a module return an output, once, without computing it, inside this block."""
    own = vars(module)
    before: Callable[..., Any] = module.forward
    shadowed = "forward" in own

    def put_back() -> None:
        if shadowed:
            own["forward"] = before
        else:
            own.pop("forward", None)

    def handed_back(*_: Any, **__: Any) -> Any:
        put_back()
        return output()

    own["forward"] = handed_back
    try:
        yield
    finally:
        put_back()


def _is_all_it_makes(tap: Tap, anatomy: Anatomy) -> bool:
    """True where the tap's value is the module's whole output: nothing of the cache, and one unchanged tensor."""
    whole = tap.kind == "module_output" and tap.key is None and tap.within is None and tap.editable
    if not whole or tap.in_place or not 0 <= tap.stage < len(anatomy.layers):
        return False
    keys = anatomy.taps.get(("k", tap.stage))
    return isinstance(keys, Tap) and keys.module is not None and not _contains(tap.module, keys.module)


def _contains(module: nn.Module | None, inner: nn.Module) -> bool:
    return module is not None and any(one is inner for one in module.modules())
