"""Taps: the point of a site in a running forward, and how its value is read and written.

`catch` hooks the taps that are not boundaries between layers; boundaries belong to the gates. Without taps it costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import Cache

from djinn_jupyter.engine.model.hooks.attention import PRODUCTS, SDPA, SOFTMAX, SdpaCall, query_slot
from djinn_jupyter.engine.model.hooks.gates import TensorKey, given_at, pick, replace_argument, swap
from djinn_jupyter.engine.model.hooks.layout import Layout, written
from djinn_jupyter.modules.engine.arithmetic import OfUnits, UnitParts
from djinn_jupyter.modules.engine.feature_layout import FeatureLayout
from djinn_jupyter.wire.modules import ModuleIdentity
from djinn_jupyter.wire.sites import Site

TapKind = Literal[
    "boundary",
    "module_input",
    "module_output",
    "module_through",
    "softmax_input",
    "softmax_output",
    "query",
    "cache_key",
    "recomputed",
    "result",
]
OnValue = Callable[["Tap", Tensor], Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tap:
    """A site, found in this model.

    `stage` is -1 before layer 0, n in layer n, the number of layers after the last one. `module` is the module whose
    input or output carries the value, or the attention module whose `ordinal`-th softmax (product, sdpa) does. `within`
    is set where several layers share that module: only calls inside that layer count. `key` is the tensor's place in
    the module's arguments or output. `width` is the size of the value's last axis, None for maps. `in_place`: the
    tensor is also the residual that is added later, so an edit has to change the tensor itself. The value of
    "module_through" is the module's input (at `key`), or its layer's value at the earlier tap `given`, followed along
    the last axis by its output (at `key_out`), which alone is replaced, and then by the additions at each of the taps
    `later`, which are `handed_by` this site.
    """

    site: Site
    kind: TapKind
    stage: int
    axes: str
    layout: Layout | FeatureLayout
    boundary: int | None = None
    module: nn.Module | None = None
    within: nn.Module | None = None
    key: TensorKey = None
    key_out: TensorKey = None
    given: Tap | None = None
    later: tuple[Tap, ...] = ()
    handed_by: Site | None = None
    ordinal: int = 0
    heads: int | None = None
    width: int | None = None
    in_place: bool = False
    editable: bool = True
    reason: str | None = None

    def read(self, raw: Tensor) -> Tensor:
        """Return the value in `raw`, batch dropped, positions first; a view where possible. Applies no selector."""
        return self.layout.read(raw)

    def rows_in(self, raw: Tensor) -> int:
        """Return the number of positions in `raw`, without computing an added module."""
        layout = self.layout.point if isinstance(self.layout, FeatureLayout) else self.layout
        return layout.rows_in(raw)

    def reading(self, raw: Tensor) -> OfUnits:
        """Return the reader of heads or features in `raw`. An added module computes only these."""
        if isinstance(self.layout, FeatureLayout):
            return self.layout.reading(raw)
        value = self.layout.read(raw)
        return UnitParts(lambda units: value[:, list(units)])

    @property
    def added(self) -> ModuleIdentity | None:
        """The added module whose values are here; None where they are the model's own."""
        return self.layout.module.identity if isinstance(self.layout, FeatureLayout) else None

    @property
    def lens_width(self) -> int | None:
        """The width of the logit lens's vectors here; None where there are none."""
        if isinstance(self.layout, FeatureLayout) and self.axes != "T D":
            return self.layout.written_width
        return self.width if self.axes == "T D" else None

    def lens_value(self, raw: Tensor, units: tuple[int, ...] | None) -> Tensor:
        """Return the logit lens's input: the value [T, D]; for features their writes, of `units` or of all."""
        if isinstance(self.layout, FeatureLayout) and self.axes != "T D":
            return self.layout.written_by(raw, units)
        return self.read(raw)

    def lens_site(self, site: Site) -> Site:
        """Return the site in the name of a lens: for features with those that it reads."""
        return site if isinstance(self.layout, FeatureLayout) else site.whole()

    def write(self, raw: Tensor, value: Tensor, met: Tensor | None = None) -> Tensor:
        """Return a copy of `raw` that holds `value`; other columns of a fused projection stay. Does not change `raw`.
        `met` is the value read from it, if available."""
        if isinstance(self.layout, FeatureLayout):
            return self.layout.spliced(raw, value, met, str(self.site))
        return written(self.layout, raw, value, str(self.site))

    def same_tensor(self, other: Tap) -> bool:
        """True where both taps read one tensor, under two names or in two parts of it."""
        if self.boundary is not None or other.boundary is not None:
            return self.boundary == other.boundary
        places = [(tap.kind, tap.module, tap.stage, tap.key, tap.ordinal) for tap in (self, other)]
        return places[0] == places[1] and self.kind != "recomputed"

    def at(self, site: Site) -> Tap:
        """Return the same tap under another spelling (a selector, an alias)."""
        return replace(self, site=site)


@contextmanager
def catch(taps: Iterable[Tap], on_value: OnValue) -> Iterator[None]:
    """Call `on_value(tap, raw)` within this block wherever a tap is reached, in order of execution.

    `on_value` returns the tensor to continue with, None to keep the present one, or raises to leave the forward. A
    returned tensor replaces the present one; where the tap is `in_place` it is copied into it. The caller handles
    boundaries and results.
    """
    listener, met = _Listener(on_value), list(taps)
    with ExitStack() as stack:
        for module, group in _by_module(met):
            listener.listen(module, group, stack)
        for given in {tap.given.site: tap.given for tap in met if tap.given is not None}.values():
            listener.note(given, stack)  # after the others: it records their edits
        yield


def _by_module(taps: Iterable[Tap]) -> list[tuple[nn.Module, list[Tap]]]:
    groups: dict[nn.Module, list[Tap]] = {}
    for tap in taps:
        if tap.module is not None:
            groups.setdefault(tap.module, []).append(tap)
    return list(groups.items())


class _Listener:
    """The hooks of one `catch`. `inside` is the layer now running, tracked only if a tap needs it.

    `busy` while `on_value` runs: its own computations, even with this model, trigger no taps.
    """

    def __init__(self, on_value: OnValue) -> None:
        self.on_value = on_value
        self.inside: nn.Module | None = None
        self.busy = False
        self._watched: set[nn.Module] = set()
        self._noted: dict[Site, Tensor] = {}

    def note(self, given: Tap, stack: ExitStack) -> None:
        """Record a module's input, for a tap later in its layer."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._hears(given):
                self._noted[given.site] = given_at(given.key, args, kwargs)

        assert given.module is not None
        stack.callback(given.module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def _hears(self, tap: Tap) -> bool:
        return not self.busy and tap.within in (None, self.inside)

    def listen(self, module: nn.Module, taps: Sequence[Tap], stack: ExitStack) -> None:
        for layer in {tap.within for tap in taps if tap.within is not None} - self._watched:
            self._watch(layer, stack)
        inputs = [tap for tap in taps if tap.kind == "module_input"]
        outputs = [tap for tap in taps if tap.kind == "module_output"]
        calls = [tap for tap in taps if tap.kind in ("softmax_input", "softmax_output", "query", "recomputed")]
        keys = [tap for tap in taps if tap.kind == "cache_key"]
        if inputs:
            stack.callback(module.register_forward_pre_hook(self._entering(inputs), with_kwargs=True).remove)
        if keys:
            _CacheKeys(self, keys).attach(module, stack)
        if calls:
            _InterceptedFunctions(self, calls).attach(module, stack)
        if outputs:
            stack.callback(module.register_forward_hook(self._leaving(outputs)).remove)
        through = [tap for tap in taps if tap.kind == "module_through"]
        if through:
            stack.callback(module.register_forward_hook(self._passing(through), with_kwargs=True).remove)

    def meet(self, tap: Tap, raw: Tensor) -> Tensor:
        if not self._hears(tap):
            return raw
        self.busy = True
        try:
            changed = self.on_value(tap, raw)
        finally:
            self.busy = False
        if changed is None or changed is raw:
            return raw
        if tap.kind == "recomputed":
            raise RuntimeError(f"{tap.site} is recomputed from q and k and cannot be replaced.")
        return raw.copy_(changed) if tap.in_place else changed

    def _watch(self, layer: nn.Module, stack: ExitStack) -> None:
        def enter(module: nn.Module, args: Any) -> None:
            if not self.busy:
                self.inside = layer

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if not self.busy:
                self.inside = None

        self._watched.add(layer)
        stack.callback(layer.register_forward_pre_hook(enter).remove)
        stack.callback(layer.register_forward_hook(leave).remove)

    def _entering(self, taps: Sequence[Tap]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            for tap in taps:
                raw = given_at(tap.key, args, kwargs)
                changed = self.meet(tap, raw)
                if changed is not raw:
                    args, kwargs = replace_argument(args, kwargs, tap.key, changed)
            return args, kwargs

        return hook

    def _leaving(self, taps: Sequence[Tap]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            for tap in taps:
                raw = pick(output, tap.key)
                changed = self.meet(tap, raw)
                if changed is not raw:
                    output = swap(output, tap.key, changed)
            return output

        return hook

    def _passing(self, taps: Sequence[Tap]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            for tap in filter(self._hears, taps):
                given = given_at(tap.key, args, kwargs) if tap.given is None else self._noted[tap.given.site]
                made = pick(output, tap.key_out)
                raw = torch.cat([given, made, *(torch.zeros_like(made) for _ in tap.later)], -1)
                changed = self.meet(tap, raw)
                if changed is not raw:
                    own = changed[..., given.shape[-1] : given.shape[-1] + made.shape[-1]]
                    output = swap(output, tap.key_out, own.to(made.dtype).contiguous())
            return output

        return hook


class _CacheKeys:
    """Intercepts the keys that an attention module passes to the cache, while the module runs."""

    def __init__(self, listener: _Listener, taps: Sequence[Tap]) -> None:
        self.listener, self.taps = listener, taps
        self._cache: Any = None

    def attach(self, module: nn.Module, stack: ExitStack) -> None:
        stack.callback(self._release)
        stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
        stack.callback(module.register_forward_hook(self._leave).remove)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.listener.busy:
            return
        self._release()
        for given in (*args, *kwargs.values()):
            if isinstance(given, Cache):
                self._cache = given
                vars(given)["update"] = self._update_of(given)
                return

    def _update_of(self, cache: Any) -> Callable[..., Any]:
        update = cache.update

        def updating(key_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            for tap in self.taps:
                key_states = self.listener.meet(tap, key_states)
            return update(key_states, *args, **kwargs)

        return updating

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self.listener.busy:
            self._release()

    def _release(self) -> None:
        if self._cache is not None:
            vars(self._cache).pop("update", None)
            self._cache = None


class _InterceptedFunctions(TorchFunctionMode):
    """Intercepts the torch functions called while one attention module runs: its softmax, its products and its sdpa."""

    def __init__(self, listener: _Listener, taps: Sequence[Tap]) -> None:
        super().__init__()
        self.listener, self.taps = listener, taps
        self._counts: dict[frozenset[Any], int] = {}
        self._active = False

    def attach(self, module: nn.Module, stack: ExitStack) -> None:
        stack.callback(self._release)
        stack.callback(module.register_forward_pre_hook(self._begin).remove)
        stack.callback(module.register_forward_hook(self._end).remove)

    def _begin(self, module: nn.Module, args: Any) -> None:
        if not self.listener.busy:
            self._counts.clear()
            self.__enter__()  # type: ignore[no-untyped-call]
            self._active = True

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self.listener.busy:
            self._release()

    def _release(self) -> None:
        if self._active:
            self._active = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _number(self, family: frozenset[Any]) -> int:
        """Return the number of earlier calls of this family, and count this one."""
        number = self._counts.get(family, 0)
        self._counts[family] = number + 1
        return number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.listener.busy:
            return func(*args, **kwargs)
        if func in SOFTMAX:
            return self._softmax(func, args, kwargs, self._number(SOFTMAX))
        if func in SDPA:
            return self._sdpa(func, args, kwargs, self._number(SDPA))
        if func in PRODUCTS:
            args, kwargs = self._queried(args, kwargs, query_slot(func, args, kwargs), PRODUCTS, self._number(PRODUCTS))
        return func(*args, **kwargs)

    def _softmax(self, func: Any, args: Any, kwargs: Any, number: int) -> Any:
        scores = args[0] if args else kwargs["input"]
        for tap in self._at("softmax_input", number):
            scores = self.listener.meet(tap, scores)
        args, kwargs = ((scores, *args[1:]), kwargs) if args else (args, {**kwargs, "input": scores})
        pattern = func(*args, **kwargs)
        for tap in self._at("softmax_output", number):
            pattern = self.listener.meet(tap, pattern)
        return pattern

    def _sdpa(self, func: Any, args: Any, kwargs: Any, number: int) -> Any:
        args, kwargs = self._queried(args, kwargs, 0 if args else "query", SDPA, number)
        recomputed = self._at("recomputed", number)
        if recomputed:
            call = SdpaCall.of(args, kwargs)
            for tap in recomputed:
                self.listener.meet(tap, call.scores() if tap.site.point == "attn_scores" else call.pattern())
        return func(*args, **kwargs)

    def _queried(self, args: Any, kwargs: Any, key: int | str, family: frozenset[Any], number: int) -> tuple[Any, Any]:
        for tap in self._at("query", number):
            if (tap.key == "sdpa") != (family is SDPA):
                continue
            changed = self.listener.meet(tap, given_at(key, args, kwargs))
            args, kwargs = replace_argument(args, kwargs, key, changed)
        return args, kwargs

    def _at(self, kind: TapKind, number: int) -> list[Tap]:
        return [tap for tap in self.taps if tap.kind == kind and tap.ordinal == number]
