"""Probes: real forward passes that are recorded in full. Draws no conclusions.

A recording lists the calls of modules, of the cache and of the torch functions that compute attention, in order, with
the shapes of their tensors and, where wanted, copies of them on the CPU. Probes run before the gates are installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Cache, DynamicCache, PreTrainedModel

from djinn_jupyter.engine.model.hooks import gates
from djinn_jupyter.engine.model.hooks.attention import PRODUCTS, SDPA, SOFTMAX, SdpaCall, factors
from djinn_jupyter.errors import ModelRefused

Family = Literal["softmax", "product", "sdpa"]
LENGTHS = (5, 7)  # two prompts of different length: the axis that changes is the position axis
PROMPTS = 16  # one-token prompts at position 0, where rotary embeddings are the identity, distinguish columns


@dataclass(slots=True, kw_only=True)
class RecordedTensor:
    """A recorded tensor: its shape, and a copy where values are kept. `read` is False where nothing was found to read
    it at the border of its module."""

    shape: tuple[int, ...]
    floating: bool
    storage: int
    value: Tensor | None = None
    read: bool = True


def storage_of(tensor: Tensor) -> int:
    """Return the address of the storage, which views share."""
    address: int = tensor.untyped_storage()._cdata
    return address


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call of a module. `entered` and `left` count the events of the pass."""

    module: nn.Module
    parent: Call | None
    entered: int
    left: int = -1
    inputs: dict[int | str, RecordedTensor] = field(default_factory=dict)
    outputs: dict[gates.TensorKey, RecordedTensor] = field(default_factory=dict)
    output: Any = None

    def inside(self, outer: Call) -> bool:
        return outer.entered < self.entered and self.left < outer.left

    @property
    def first_output(self) -> RecordedTensor | None:
        return next(iter(self.outputs.values()), None)


@dataclass(slots=True, kw_only=True, eq=False)
class FunctionCall:
    """A softmax, a product or an sdpa. `given`: a product's factors; query, key and value; empty for a softmax."""

    family: Family
    caller: Call | None
    at: int
    given: tuple[RecordedTensor, ...]
    result: RecordedTensor


@dataclass(slots=True, kw_only=True, eq=False)
class CacheCall:
    """An update of one layer of the cache. `key` and `value` are set for attention."""

    caller: Call | None
    at: int
    layer: int
    key: RecordedTensor | None = None
    value: RecordedTensor | None = None


class Recording:
    """The record of one pass. `keep` is true of modules whose tensors are copied."""

    def __init__(self, keep: Callable[[nn.Module], bool]) -> None:
        self.keep = keep
        self.calls: list[Call] = []
        self.functions: list[FunctionCall] = []
        self.cache_calls: list[CacheCall] = []
        self.logits: Tensor | None = None
        self.cache: ProbeCache | None = None
        self.pausing = False  # while a layer's record is being examined, during the pass
        self._open: list[Call] = []
        self._events = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing meanwhile."""
        self.pausing = True
        yield
        self.pausing = False

    def tick(self) -> int:
        self._events += 1
        return self._events

    @property
    def current(self) -> Call | None:
        return self._open[-1] if self._open else None

    @property
    def wanted(self) -> bool:
        """True where the tensors of the current call are copied."""
        return self.current is not None and self.keep(self.current.module)

    def see(self, tensor: Tensor, keep: bool) -> RecordedTensor:
        value = tensor.detach().to("cpu", copy=True) if keep else None
        return RecordedTensor(
            shape=tuple(tensor.shape), floating=tensor.is_floating_point(), storage=storage_of(tensor), value=value
        )

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = Call(module=module, parent=self.current, entered=self.tick())
        keep = self.keep(module)
        call.inputs = {key: self.see(tensor, keep) for key, tensor in gates.arguments_in(args, kwargs)}
        self.calls.append(call)
        self._open.append(call)

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        call = self._open.pop()
        keep = self.keep(module)
        call.outputs = {key: self.see(tensor, keep) for key, tensor in gates.tensors_in(output)}
        call.output = type(output), len(output) if isinstance(output, tuple | list) else None
        call.left = self.tick()

    def of(self, module: nn.Module) -> list[Call]:
        return [call for call in self.calls if call.module is module]

    def release(self, span: Call) -> None:
        """Free the copies of tensors recorded within `span` and of all function and cache calls so far; shapes stay."""
        for call in self.calls:
            if call.inside(span):
                for seen in (*call.inputs.values(), *call.outputs.values()):
                    seen.value = None
        kept = [seen for function in self.functions for seen in (*function.given, function.result)]
        kept += [seen for stored in self.cache_calls for seen in (stored.key, stored.value) if seen is not None]
        for seen in kept:
            seen.value = None


class ProbeCache(DynamicCache):
    """The library's own cache, which reports every update to a recording."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(config=model.config)
        self.recording: Recording | None = None

    def _told(self, layer: int, key: Tensor | None = None, value: Tensor | None = None) -> None:
        recording = self.recording
        assert recording is not None
        seen = [None if tensor is None else recording.see(tensor, recording.wanted) for tensor in (key, value)]
        recording.cache_calls.append(
            CacheCall(caller=recording.current, at=recording.tick(), layer=layer, key=seen[0], value=seen[1])
        )

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        self._told(layer_idx, key_states, value_states)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        self._told(layer_idx)
        return super().update_conv_state(conv_states, layer_idx, *args, **kwargs)

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        self._told(layer_idx)
        return super().update_recurrent_state(recurrent_states, layer_idx, *args, **kwargs)


class _RecordedFunctions(TorchFunctionMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.recording.pausing:
            return result
        if func in SOFTMAX:
            self._note("softmax", (), result)
        elif func in SDPA:
            call = SdpaCall.of(args, kwargs)
            self._note("sdpa", (call.query_BHTd, call.key_BGKd, call.value_BGKd), result)
        elif func in PRODUCTS:
            self._note("product", factors(func, args, kwargs), result)
        return result

    def _note(self, family: Family, given: tuple[Tensor, ...], result: Tensor) -> None:
        recording = self.recording
        recording.functions.append(
            FunctionCall(
                family=family,
                caller=recording.current,
                at=recording.tick(),
                given=tuple(recording.see(tensor, recording.wanted) for tensor in given),
                result=recording.see(result, recording.wanted),
            )
        )


KeepLast = Mapping[str, int | Tensor]
Hook = tuple[nn.Module, Callable[..., Any] | None, Callable[..., Any] | None]


@torch.no_grad()
def record(
    model: PreTrainedModel,
    tokens_BT: Tensor,
    *,
    keep: Callable[[nn.Module], bool] = lambda module: False,
    hooks: Callable[[Recording], Iterable[Hook]] = lambda recording: (),
    cache: ProbeCache | None = None,
    keep_last: KeepLast,
    within: Callable[[Recording], AbstractContextManager[object]] | None = None,
) -> Recording:
    """Run and record one pass over `tokens_BT`, on top of `cache` and `within` a context. `hooks` are (module, before,
    after); they run before the recording enters a module and after it leaves."""
    recording = Recording(keep)
    recording.cache = cache or ProbeCache(model)
    recording.cache.recording = recording
    arguments = {cache_argument(model): recording.cache, "use_cache": True, **keep_last}
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(recording.enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(recording.leave).remove)
        for module, before, after in hooks(recording):
            if before is not None:
                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
            if after is not None:
                stack.callback(module.register_forward_hook(after).remove)
        stack.enter_context(_RecordedFunctions(recording))
        if within is not None:
            stack.enter_context(within(recording))
        recording.logits = model(tokens_BT, **arguments).logits.detach().to("cpu", copy=True)
    return recording


def cache_argument(model: PreTrainedModel) -> str:
    parameters = inspect.signature(model.forward).parameters
    for name in ("past_key_values", "cache_params"):
        if name in parameters:
            return name
    raise ModelRefused.inexact(type(model).__name__, "its forward takes no cache from its caller")


def ways_to_keep_last(model: PreTrainedModel) -> tuple[KeepLast, ...]:
    """Return the arguments that ask for the logits of the last position only, where the family has them, with
    `generate`'s own first. With that one some families carry only the last position through their upper layers; with an
    index, they do not."""
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return ({},)
    return {"logits_to_keep": 1}, {"logits_to_keep": torch.tensor([-1])}


def spread_tokens(model: PreTrainedModel, count: int, offset: int = 0) -> Tensor:
    """Return `count` token ids spread over the vocabulary, on the device of the embedding."""
    weight = embedding_weight(model)
    ids = torch.linspace(offset + 1, weight.shape[0] - 2, count).round().long() % weight.shape[0]
    return ids.to(weight.device)


def embedding_weight(model: PreTrainedModel) -> Tensor:
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight


def linears(root: nn.Module) -> Iterator[nn.Module]:
    """Yield the linear maps in a module: leaves with a matrix for a weight."""
    for module in root.modules():
        weight = getattr(module, "weight", None)
        leaf = next(module.children(), None) is None
        if leaf and isinstance(weight, nn.Parameter) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
            yield module


def kept(seen: RecordedTensor | None) -> Tensor:
    """Return the copy of a tensor of a module whose values are kept."""
    assert seen is not None
    assert seen.value is not None
    return seen.value


def check_finite(model: PreTrainedModel, layers: Mapping[str, nn.Module], recording: Recording) -> None:
    """Raise ModelRefused where a few ordinary tokens made NaN or infinity, naming the weight or the layer."""
    where = _first_overflow(layers, recording)
    if where is None:
        return
    damaged = next((name for name, weight in model.named_parameters() if not _finite(weight)), None)
    if damaged is not None:
        raise ModelRefused(
            f"The weights of this {type(model).__name__} are damaged: {damaged} holds NaN or infinity; "
            "copy or download them again."
        )
    dtype = str(model.dtype).removeprefix("torch.")
    raise ModelRefused(
        f"{type(model).__name__} overflows in {dtype}: its weights are finite, and {where} not. "
        "Load it in another dtype; bfloat16 and float32 reach further than float16."
    )


def _first_overflow(layers: Mapping[str, nn.Module], recording: Recording) -> str | None:
    for path, layer in layers.items():
        for call in recording.of(layer):
            made = call.first_output
            if made is not None and made.value is not None and not _finite(made.value):
                return f"what {path} returns is"
    assert recording.logits is not None
    return "its logits are" if recording.logits.isnan().any() else None  # minus infinity masks a token


def _finite(tensor: Tensor) -> bool:
    """True where all entries are finite. One-byte formats have no infinity to test for."""
    return not tensor.is_floating_point() or tensor.element_size() == 1 or bool(torch.isfinite(tensor).all())


# Values that nothing reads: the operations of a probe, followed back from its logits and its cache. An edit of such a
# value would change nothing. Reading a tensor's dtype or device is not a read of its value. Kernels that PyTorch does
# not dispatch are not seen, so a pass in which all such values are changed has to agree.

Border = tuple[nn.Module, str, gates.TensorKey]
"""A module, `input` or `output`, and the key of a tensor there."""
_LIFTED: Final = torch.ops.aten.lift_fresh.default
"""Returns the tensor that it is given, which `torch.tensor` made without an operation, maybe at a freed address."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The storages that one operation read and wrote, and those of the written ones that it made."""

    at: int
    read: frozenset[int]
    written: frozenset[int]
    made: frozenset[int]


class RecordedOperations(TorchDispatchMode):
    """Notes each operation that PyTorch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded: list[Operation] = []

    def of(self, recording: Recording) -> RecordedOperations:
        """Return the mode for the pass of this recording."""
        self._recording = recording
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _storages([] if func is _LIFTED else [args, kwargs])
        result = func(*args, **(kwargs or {}))
        changed = _storages(a for a, of in zip(args, func._schema.arguments, strict=False) if _is_written(of))
        returned = _storages(result)
        self.recorded.append(Operation(self._recording.tick(), given, returned | changed, returned - given))
        return result


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _storages(values: Any) -> frozenset[int]:
    return frozenset(storage_of(one) for one in tree_leaves(values) if isinstance(one, Tensor))


def tensors_of(cache: Cache) -> list[Tensor]:
    """Return the tensors that a cache holds."""
    return [one for layer in cache.layers for one in tree_leaves(vars(layer)) if isinstance(one, Tensor)]


def mark_unread(recording: Recording, operations: Iterable[Operation], left: Iterable[Tensor]) -> None:
    """Mark the tensors at the borders of modules that do not reach the tensors `left` by the pass."""
    live = {storage_of(tensor) for tensor in left}
    within: list[Call] = []
    for event in _backwards(recording, operations):
        if isinstance(event, Operation):
            if not event.written or event.written & live:  # one that makes no tensor decides what code does next
                live = (live - event.made) | event.read
                _mark(within, event.read)
        elif event in within:
            within.remove(event)
        else:
            within.append(event)
            for seen in event.outputs.values():
                seen.read = seen.storage in live
            for seen in event.inputs.values():
                seen.read = any(seen.storage == made.storage and made.read for made in event.outputs.values())


def _backwards(recording: Recording, operations: Iterable[Operation]) -> Iterator[Operation | Call]:
    """Yield the operations from the last to the first, and each call twice: at its end and at its start."""
    moments: dict[int, Operation | Call] = {operation.at: operation for operation in operations}
    moments |= {call.entered: call for call in recording.calls} | {call.left: call for call in recording.calls}
    for at in sorted(moments, reverse=True):
        yield moments[at]


def _mark(within: Iterable[Call], read: frozenset[int]) -> None:
    for call in within:
        for seen in call.inputs.values():
            seen.read = seen.read or seen.storage in read


def unread(recording: Recording) -> list[Border]:
    """Return the borders that carry numbers and were marked in each call of their module."""
    found: dict[Border, bool] = {}
    for call in recording.calls:
        for side, border in (("input", call.inputs), ("output", call.outputs)):
            for key, seen in border.items():
                place = call.module, side, key
                found[place] = found.get(place, True) and seen.floating and not seen.read
    return [place for place, is_unread in found.items() if is_unread]


def changing(borders: Iterable[Border]) -> Iterator[Hook]:
    """Yield hooks that put other numbers there."""
    for module, side, key in borders:
        yield (module, _given_other(key), None) if side == "input" else (module, None, _made_other(key))


def _given_other(key: gates.TensorKey) -> Callable[..., Any]:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return gates.replace_argument(args, kwargs, key, 1 - gates.given_at(key, args, kwargs))

    return before


def _made_other(key: gates.TensorKey) -> Callable[..., Any]:
    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return gates.swap(output, key, 1 - gates.pick(output, key))

    return after
