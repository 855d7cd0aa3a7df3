"""One token sequence with its norms' scales and attention patterns held. A held norm is y = scale * gain * (x, minus
its mean where the norm subtracts it) + shift, where each position keeps its original scale.

Names select the modules to examine, and arithmetic decides which are norms: one whose output is not of this form is
left unchanged. Shapes: ... positions (and heads), D features.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.attribution.engine.line import LayerArguments, recording
from djinn_jupyter.wire.sites import Site

ALIKE: Final = {torch.float32: 1e-4, torch.float64: 1e-6}  # of the largest entry
ALIKE_IN_16_BITS: Final = 2e-2
CENTRED: Final = 1e-2  # of the output: what remains of equal features once their mean is subtracted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrozenNorm:
    """A norm as it was at one value; `scale` has one entry for each of its positions."""

    gain_D: Tensor
    shift_D: Tensor
    scale: Tensor
    centred: bool

    @classmethod
    def at(cls, norm: nn.Module, x: Tensor, y: Tensor) -> FrozenNorm | None:
        """Return the norm that made y of x; None for another module."""

        def made(value_D: Tensor) -> Tensor:
            found: Tensor = norm.forward(value_D.expand(x.shape[:-1] + value_D.shape).to(x.dtype))
            return found.reshape(-1, x.shape[-1])[0].float()

        size = x.float().square().mean().sqrt().clamp_min(1e-6)
        shift_D = made(torch.zeros_like(x.reshape(-1, x.shape[-1])[0]))
        even = torch.ones_like(shift_D)
        centred = bool((made(even * size) - shift_D).abs().max() < CENTRED * y.float().abs().max())
        if centred:
            even = 1.0 - 2.0 * (torch.arange(len(even), device=x.device) % 2)
            even = even - even.mean()
        gain_D = (made(even * size) - shift_D) / even
        direction = gain_D * _centred(x.float(), centred)
        within = y.float() - shift_D
        scale = (within * direction).sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True).clamp_min(1e-30)
        allowed = ALIKE.get(y.dtype, ALIKE_IN_16_BITS) * y.float().abs().max()
        if (within - scale * direction).abs().max() > allowed:
            return None
        return cls(gain_D=gain_D, shift_D=shift_D, scale=scale, centred=centred)

    def of(self, x: Tensor) -> Tensor:
        return (self.scale * (self.gain_D * _centred(x.float(), self.centred)) + self.shift_D).to(x.dtype)


def _centred(x: Tensor, centred: bool) -> Tensor:
    return x - x.mean(-1, keepdim=True) if centred else x


class FrozenNorms:
    """The norms of a model that are held while one sequence's affine part is computed."""

    def __init__(self) -> None:
        self._found: dict[nn.Module, FrozenNorm | None] = {}

    @contextmanager
    def noted(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Record each norm among the modules as it computes inside this block, except one that runs twice."""

        def note(module: nn.Module, args: tuple[Any, ...], y: Any) -> None:
            again = module in self._found
            alone = len(args) == 1 and isinstance(args[0], Tensor) and isinstance(y, Tensor)
            with recording(False):
                found = FrozenNorm.at(module, args[0].detach(), y.detach()) if alone and not again else None
            self._found[module] = found

        with _hooked(modules, note):
            yield

    @contextmanager
    def held(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Make each recorded norm compute with its scale held inside this block."""

        def hold(module: nn.Module, args: tuple[Any, ...], y: Any) -> Tensor | None:
            found = self._found.get(module)
            return None if found is None else found.of(args[0])

        with _hooked(modules, hold):
            yield


@contextmanager
def _hooked(modules: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def norms_in(module: nn.Module, but: nn.Module | None = None) -> list[nn.Module]:
    """Return the modules within one that may be norms, except those inside another."""
    left_out = set() if but is None else set(but.modules())
    return [one for one in module.modules() if "norm" in type(one).__name__.lower() and one not in left_out]


# One sequence through the layers with its attention patterns and the scales of its norms held, and its MLPs' outputs
# given: then each MLP's input, and the logits, are affine in the embeddings and in the given values (the local
# replacement model of Ameisen et al. 2025). Shapes: 1 sequence, S positions, D features; V tokens.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTaps:
    """The places of one layer that are held or given. `read` is its transcoder's input, and `skip_OD` the transcoder's
    skip; None without one."""

    queries: Tap
    keys: Tap
    made: Tap
    read: Tap | None
    skip_OD: Tensor | None

    @classmethod
    def of(cls, forward: Forward, made: Site, read: Tap | None, skip_OD: Tensor | None) -> LayerTaps:
        """Find those of a layer in which transcoders write at `made`. UnknownSite where the layers have others."""
        with recording(False):
            own = None if skip_OD is None else skip_OD.clone()  # the module's scale is not a tensor for a graph
        return cls(
            queries=_found(forward, "q", made.layer),
            keys=_found(forward, "k", made.layer),
            made=_found(forward, made.point, made.layer),
            read=read,
            skip_OD=own,
        )

    @property
    def held(self) -> tuple[Tap, ...]:
        return self.queries, self.keys


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrozenRun:
    """A layer after its run: its entry, the MLP's given output, the transcoder's input (or None) and the layer's
    output."""

    entry_1SD: Tensor
    given: Tensor
    read: Tensor | None
    after_1SD: Tensor


class FrozenLine:
    """A sequence that ran once by itself; `entries` are before each layer, `made` and `read` raw values of its MLPs."""

    def __init__(self, forward: Forward, arguments: LayerArguments, taps: Sequence[LayerTaps]) -> None:
        self.forward, self.arguments, self.taps = forward, arguments, taps
        self.made: list[Tensor] = []
        self.read: list[Tensor | None] = []
        self.logits_V = torch.empty(0)
        self.end_1SD = torch.empty(0)
        self.bends = False  # logits after the head, for example by a soft-cap
        self._norms = FrozenNorms()
        self._held: dict[Site, Tensor] = {}
        layers = forward.anatomy.layers
        self._within = [norms_in(layer, one.made.module) for layer, one in zip(layers, taps, strict=True)]
        inside = {module for layer in layers for module in layer.modules()}
        self._behind = [one for one in norms_in(forward.model) if one not in inside]

    def record(self) -> Generator[None, None, None]:
        """Run every layer, a step each, like the model, and keep what is held later."""
        hidden = self.arguments.entry_1SD
        for layer, taps in enumerate(self.taps):
            seen: dict[Site, Tensor] = {}

            def meet(tap: Tap, raw: Tensor, seen: dict[Site, Tensor] = seen) -> None:
                seen[tap.site] = raw.detach().clone()

            places = [one for one in (*taps.held, taps.made, taps.read) if one is not None]
            with recording(False), self._norms.noted(self._within[layer]):
                hidden = self._layer(layer, hidden, places, meet)
            self._held |= {tap.site: tap.read(seen[tap.site]).clone() for tap in taps.held}
            self.made.append(seen[taps.made.site])
            self.read.append(None if taps.read is None else seen[taps.read.site])
            yield
        self.end_1SD = hidden
        with recording(False), self._norms.noted(self._behind):
            model_V, head_V = self._read_out(hidden[0, -1:])
        self.bends = head_V is not None and not _alike(model_V, head_V)
        self.logits_V = head_V if head_V is not None and self.bends else model_V

    def given(self, layer: int) -> Tensor:
        """Return an MLP's output, minus the skip of its transcoder."""
        with recording(False):
            return self.made[layer] - self._skipped(self.taps[layer], self.read[layer], self.made[layer])

    def run(self, layer: int, entry_1SD: Tensor, given: Tensor, *, graph: bool) -> FrozenRun:
        """Run a layer, with its MLP's output `given`, except for the skip of its transcoder."""
        taps, seen = self.taps[layer], dict[Site, Tensor]()
        with recording(graph):
            entry, own = (value.detach().requires_grad_(graph) for value in (entry_1SD, given))

        def meet(tap: Tap, raw: Tensor) -> Tensor | None:
            if tap.site in self._held:
                return tap.write(raw, self._held[tap.site])
            seen[tap.site] = raw
            if tap is not taps.made:
                return None
            read = None if taps.read is None else seen[taps.read.site]
            return own + self._skipped(taps, read, own)

        places = [one for one in (*taps.held, taps.read, taps.made) if one is not None]
        with recording(graph), self._norms.held(self._within[layer]):
            after = self._layer(layer, entry.clone(), places, meet)
        read = None if taps.read is None else seen[taps.read.site]
        return FrozenRun(entry_1SD=entry, given=own, read=read, after_1SD=after)

    def logits(self, last_1D: Tensor) -> Tensor:
        """Return the logits [V] of the last position, with the scale of the norm before them held; where the model
        bends its logits afterwards, the head's output."""
        with self._norms.held(self._behind):
            model_V, head_V = self._read_out(last_1D)
        return head_V if head_V is not None and self.bends else model_V

    def _read_out(self, last_1D: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the model's logits [V], and its head's output, None where that is not a module."""
        head: Any = self.forward.model.get_output_embeddings()
        if not isinstance(head, nn.Module):
            return self.forward.epilogue(last_1D)[0], None
        made: list[Tensor] = []
        handle = head.register_forward_hook(lambda module, args, output: made.append(output))
        try:
            model_V = self.forward.epilogue(last_1D)[0]
        finally:
            handle.remove()
        return model_V, made[-1].reshape(-1, made[-1].shape[-1])[-1]

    def onward(
        self, entry_1SD: Tensor, given: Callable[[int], Tensor]
    ) -> Generator[None, None, tuple[list[Tensor | None], Tensor]]:
        """Run every layer from another entry, with other values given. Return transcoders' inputs, and logits."""
        hidden, read = entry_1SD, []
        for layer in range(len(self.taps)):
            ran = self.run(layer, hidden, given(layer), graph=False)
            hidden = ran.after_1SD
            read.append(None if ran.read is None else ran.read.clone())
            yield
        with recording(False):
            return read, self.logits(hidden[0, -1:])

    def _layer(self, layer: int, hidden: Tensor, places: Sequence[Tap], meet: Any) -> Tensor:
        form = self.forward.anatomy.forms[layer]
        with torch.inference_mode(False):
            args, kwargs = form.put(*self.arguments.of_layer[layer], hidden)
            with self.forward.calling(), catch(places, meet):
                found: Tensor = form.unwrap(self.forward.anatomy.layers[layer](*args, **kwargs))
        return found

    def _skipped(self, taps: LayerTaps, read: Tensor | None, like: Tensor) -> Tensor:
        if taps.skip_OD is None or read is None:
            return torch.zeros((), dtype=like.dtype, device=like.device)
        return linear(read.to(taps.skip_OD.dtype), taps.skip_OD).to(like.dtype)


def _found(forward: Forward, point: str, layer: int | None) -> Tap:
    tap = forward.anatomy.taps[point, layer]
    if isinstance(tap, str):
        raise UnknownSite(f"This model has no attribution graph: {point}.{layer} is not there to be held ({tap}).")
    return tap


def _alike(model_V: Tensor, head_V: Tensor) -> bool:
    """Return whether logits equal the head's output, up to a factor and rounding."""
    model, head = model_V.double(), head_V.double()
    factor = (model @ head) / (head @ head).clamp_min(1e-30)
    allowed = (1e-5 if head_V.dtype.itemsize > 2 else 2e-2) * head.abs().max()
    return bool((model - factor * head).abs().max() <= allowed)
