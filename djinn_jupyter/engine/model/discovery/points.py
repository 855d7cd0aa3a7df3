"""Find the blocks of a layer by arithmetic on its residual stream: which tensors were added, bit for bit.

A layer is `two` blocks one after the other (with a residual between them), `parallel` blocks added at once, or `one`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Literal

from torch import Tensor, nn

from djinn_jupyter.engine.model.discovery.heads import columns_by_bits, columns_by_factor, distinct, flat
from djinn_jupyter.engine.model.discovery.layer_list import same
from djinn_jupyter.engine.model.discovery.layer_record import LayerRecord, adds, has_matrix, scale_of
from djinn_jupyter.engine.model.discovery.recording import (
    PROMPTS,
    CacheCall,
    Call,
    FunctionCall,
    RecordedTensor,
    kept,
    linears,
)
from djinn_jupyter.engine.model.hooks.gates import TensorKey
from djinn_jupyter.engine.model.hooks.layout import Heads
from djinn_jupyter.wire.sites import ATTENTION_POINTS, MLP_POINTS

BlockKind = Literal["two", "parallel", "one", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockContribution:
    """The tensor that a block adds: `block` makes it; `post` is the norm before the sum; `scale` a factor there."""

    value: Tensor
    block: Call | None
    post: Call | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """`mid` is the earliest (call, argument) that gets the residual between two blocks.

    `second` is None where the sum of two outputs is added (routed and shared experts).
    """

    kind: BlockKind
    mid: tuple[Call, int | str] | None = None
    first: BlockContribution | None = None
    second: BlockContribution | None = None


def find_blocks(record: LayerRecord, *, edited: bool = False) -> Blocks:
    """Find the blocks of a layer. If the residual between two may have been `edited`, nothing shows the first."""
    return (
        _two(record, exact=True, edited=edited)
        or _parallel(record)
        or _one(record)
        or _two(record, exact=False, edited=edited)
        or Blocks(kind="unknown")
    )


def _factor(one: Tensor, other: Tensor, total: Tensor, exact: bool) -> float | None:
    if exact:
        return 1.0 if adds(one, other, total) else None
    return scale_of(one, other, total)


def _two(record: LayerRecord, exact: bool, edited: bool) -> Blocks | None:
    tried: list[Tensor] = []
    for call, key, residual in record.inputs:
        if any(same(residual, value) for value in (record.before, record.after, *tried)):
            continue
        tried.append(residual)
        later = _distinct(value for other, value in record.outputs if other.left > call.entered)
        factors = [(value, _factor(residual, value, record.after, exact)) for value in later]
        added = next(((value, factor) for value, factor in factors if factor is not None), None)
        if added is not None:
            second = _contribution(record, *added)
        elif any(_factor(residual, one + other, record.after, exact) for one, other in combinations(later, 2)):
            second = None
        else:
            continue
        first = _first(record, residual, call)
        if first is None and not edited and _has_blocks_before(record, call):
            continue
        return Blocks(kind="two", mid=(call, key), first=first, second=second)
    return None


def _distinct(values: Iterable[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if not any(same(value, other) for other in found):
            found.append(value)
    return found


def _first(record: LayerRecord, residual: Tensor, mid: Call) -> BlockContribution | None:
    """Return the contribution that, added to the layer's input, makes the residual in the middle."""
    earlier = [value for call, value in record.outputs if call.left < mid.entered]
    for exact in (True, False):
        for value in earlier:
            factor = _factor(record.before, value, residual, exact)
            if factor is not None:
                return _contribution(record, value, factor)
    return None


def _has_blocks_before(record: LayerRecord, mid: Call) -> bool:
    """Return whether a call before this one gets a residual after a first block, as in layers of three."""
    earlier = [(call, value) for call, _, value in record.inputs if call.entered < mid.entered]
    return any(not same(value, record.before) and _first(record, value, call) is not None for call, value in earlier)


def _parallel(record: LayerRecord) -> Blocks | None:
    """Find two blocks added to the same residual, in either order; the one that uses the cache is listed first."""
    made = _distinct(value for call, value in record.outputs if has_matrix(call.module))
    for one, other in permutations(made, 2):
        if adds(record.before + one, other, record.after) or adds(one + other, record.before, record.after):
            pair = [_contribution(record, one), _contribution(record, other)]
            pair.sort(key=lambda c: c.block is not None and record.uses_cache(c.block), reverse=True)
            return Blocks(kind="parallel", first=pair[0], second=pair[1])
    return None


def _one(record: LayerRecord) -> Blocks | None:
    for exact in (True, False):
        for _, value in record.outputs:
            factor = _factor(record.before, value, record.after, exact)
            if factor is not None:
                return Blocks(kind="one", first=_contribution(record, value, factor))
    return None


def _contribution(record: LayerRecord, value: Tensor, scale: float = 1.0) -> BlockContribution:
    block = record.maker(value)
    if block is not None:
        return BlockContribution(value=value, block=block, scale=scale)
    post = record.makers(value)[0]
    raw = next((shaped for seen in post.inputs.values() if (shaped := record.shaped(seen)) is not None), None)
    block = None if raw is None else record.maker(raw)
    return BlockContribution(value=value, block=block, post=post, scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleTensor:
    """The tensor at `key` of a module's input or output. `heads` is set where it is divided into heads."""

    module: nn.Module
    side: Literal["input", "output"]
    key: TensorKey
    heads: Heads | None = None
    in_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inner:
    """The `ordinal`-th call of a family of torch functions while `module` runs, or the keys it passes to the cache."""

    module: nn.Module
    family: Literal["softmax", "product", "sdpa", "cache"]
    ordinal: int = 0


FoundPoints = dict[str, ModuleTensor | Inner | str]
"""Points of one layer; a string is the reason why a point is absent."""


def output_of(record: LayerRecord, call: Call, heads: Heads | None = None) -> ModuleTensor | str:
    """Return the first output of a module, or a reason unless the layer calls that module once."""
    if record.count(call.module) != 1:
        return f"{type(call.module).__name__} is called {record.count(call.module)} times in a layer"
    key = next(iter(call.outputs))
    return ModuleTensor(module=call.module, side="output", key=key, heads=heads)


def input_of(record: LayerRecord, call: Call, heads: Heads | None = None) -> ModuleTensor | str:
    """Return the first floating argument of a module, or a reason unless the layer calls that module once."""
    if record.count(call.module) != 1:
        return f"{type(call.module).__name__} is called {record.count(call.module)} times in a layer"
    key = next((key for key, seen in call.inputs.items() if seen.floating), None)
    if key is None:
        return f"{type(call.module).__name__} is given no activations"
    return ModuleTensor(module=call.module, side="input", key=key, heads=heads)


def added_as_it_is(point: str, scale: float = 1.0) -> str:
    """Return the reason why a point has no norm after it: it is added to the residual, times `scale`."""
    scaled = f" times {scale:g}" if scale != 1.0 else ""
    return f"{point}{scaled} is what is added to the residual"


def _partly_shared(keys_BHD: Tensor) -> bool:
    """Return whether all heads have some columns in common, as the rotated ones of keys with latent attention."""
    common_D = (keys_BHD == keys_BHD[:, :1]).all(1).all(0)
    return bool(common_D.any()) and not bool(common_D.all())


UNCOMPARED = "no single call compares queries with keys"
COMPRESSED = "the cache keeps a compressed form, from which keys and values are made anew at every pass"
PARTLY_SHARED = "a part of the keys is the same in all heads, and no single module returns whole keys"
REPEATED = "a module that the layer calls several times returns it as attention gets it"
NO_OUTPUT_MAP = "the attention module does not end in a linear map"


def attention_places(record: LayerRecord, blocks: Blocks) -> FoundPoints:
    call = attention_call(record)
    if isinstance(call, str):
        return dict.fromkeys(ATTENTION_POINTS, call)
    return _Attention(record, call, blocks).places()


def attention_call(record: LayerRecord) -> Call | str:
    """Return the call of a layer's attention, the innermost module running when keys go to the cache, or a reason."""
    callers = {c.caller for c in record.cache_calls if c.key is not None and c.caller is not None}
    callers = callers or {f.caller for f in _attending(record) if f.caller is not None}
    if not callers:
        return "this layer has no attention"
    if len(callers) > 1:
        return "this layer has several attention modules; name one by its path"
    call: Call | None = callers.pop()
    while call is not None and call is not record.span:
        if _linear_calls(record, call):
            return call
        call = call.parent
    return "the attention of this layer is not a module of its own"


def _attending(record: LayerRecord) -> list[FunctionCall]:
    """Return the calls that are certainly attention: sdpa, and softmax over maps with heads."""
    return [f for f in record.functions if f.family == "sdpa" or (f.family == "softmax" and len(f.result.shape) == 4)]


def _linear_calls(record: LayerRecord, within: Call) -> list[Call]:
    maps = set(linears(within.module))
    return [call for call in record.calls if call.module in maps and call.inside(within)]


class _Attention:
    """The search in one attention module, which this layer calls once, as `call`."""

    def __init__(self, record: LayerRecord, call: Call, blocks: Blocks) -> None:
        self.record, self.call, self.blocks = record, call, blocks
        self.linears = _linear_calls(record, call)
        self.functions = [f for f in record.functions if call.entered < f.at < call.left]
        self.stored: CacheCall | None = next((c for c in record.cache_calls if c.key is not None), None)
        self.query = self._query()

    def places(self) -> FoundPoints:
        last = self._output_map()
        found: FoundPoints = {
            "attn_in": input_of(self.record, self.call),
            "q": self._projected("q", self._query_value()),
            "k": self._projected("k", self._stored("key")),
            "v": self._projected("v", self._stored("value")),
            "q_rot": self._query_place(),
            "k_rot": self._why_not_stored() or Inner(module=self.call.module, family="cache"),
            "attn_scores": self._maps(),
            "pattern": self._maps(),
            "z": last if isinstance(last, str) else input_of(self.record, last, self._even_heads(last)),
        }
        found.update(self._outputs(last))
        return found

    def _query(self) -> FunctionCall | None:
        """Return the call that compares queries with keys: sdpa, else the last product before the softmax."""
        fused = [f for f in self.functions if f.family == "sdpa"]
        if fused:
            return fused[0] if all(same(f.given[0].value, fused[0].given[0].value) for f in fused) else None
        softmax = self._softmax()
        products = [f for f in self.functions if f.family == "product" and softmax is not None and f.at < softmax.at]
        return products[-1] if products else None

    def _softmax(self) -> FunctionCall | None:
        found = [f for f in self.functions if f.family == "softmax" and len(f.result.shape) >= 3]
        return found[0] if len(found) == 1 else None

    def _ordinal(self, function: FunctionCall) -> int:
        return [f for f in self.functions if f.family == function.family].index(function)

    def _query_value(self) -> Tensor | str:
        if self.query is None:
            return UNCOMPARED
        value = kept(self.query.given[0])
        return value.reshape(PROMPTS, -1, value.shape[-1])

    def _query_place(self) -> Inner | str:
        if self.query is None or not self._only_one():
            return UNCOMPARED
        return Inner(module=self.call.module, family=self.query.family, ordinal=self._ordinal(self.query))

    def _only_one(self) -> bool:
        return sum(f.family == "sdpa" for f in self.functions) <= 1

    def _why_not_stored(self) -> str | None:
        """Return the reason why the tensors in the cache are not the keys that attention sees, or None."""
        if self.stored is None:
            return "this layer reads the keys and values of an earlier layer"
        stored = _heads_of(self.stored.key)
        seen = None if self.query is None else kept(self.query.given[1]).reshape(PROMPTS, -1)
        if seen is not None and columns_by_bits(stored, seen) is None and columns_by_factor(stored, seen) is None:
            return COMPRESSED
        return None

    def _stored(self, what: str) -> Tensor | str:
        why_not = self._why_not_stored()
        if why_not is not None or self.stored is None:
            return why_not or ""
        return _heads_of(self.stored.key if what == "key" else self.stored.value)

    def _attended(self) -> set[int]:
        """Return the storages of the queries and keys as attention gets them: a module that returns one is the last."""
        seen = (*(self.query.given[:2] if self.query else ()), self.stored.key if self.stored else None)
        return {one.storage for one in seen if one is not None}

    def _maps(self) -> Inner | str:
        softmax = self._softmax()
        if softmax is not None:
            return Inner(module=self.call.module, family="softmax", ordinal=self._ordinal(softmax))
        if self.query is not None and self.query.family == "sdpa" and self._only_one():
            return Inner(module=self.call.module, family="sdpa", ordinal=self._ordinal(self.query))
        return "the attention module calls no single softmax"

    def _projected(self, what: str, target_BHD: Tensor | str) -> ModuleTensor | str:
        """Return the module whose output columns are the tensor that attention gets, at position 0."""
        if isinstance(target_BHD, str):
            return target_BHD
        repeated = False
        sources = [call for call in self.record.calls if call is not self.call and call.left < self.call.left]
        sources.sort(key=lambda call: not call.inside(self.call))
        for match in (columns_by_bits, columns_by_factor):
            for call in sources:
                seen = call.first_output
                if (
                    seen is None
                    or seen.value is None
                    or not seen.floating
                    or not seen.shape
                    or seen.shape[0] != PROMPTS
                ):
                    continue
                index = match(target_BHD, flat(seen.value))
                if index is not None and self.record.count(call.module) == 1:
                    return output_of(self.record, call, Heads.of_index(distinct(index)))
                repeated = repeated or (index is not None and seen.storage in self._attended())
        if repeated:
            return REPEATED
        if what == "k" and _partly_shared(target_BHD):
            return PARTLY_SHARED
        return f"no single module returns {what} as attention gets it (before the rotary embedding)"

    def _output_map(self) -> Call | str:
        """Return the last linear map if its output is the module's or was added to the residual, else the reason."""
        after = max((f.at for f in self.functions), default=self.call.entered)
        last = next((call for call in reversed(self.linears) if call.left > after), None)
        if last is None or last.first_output is None or self.call.first_output is None:
            return NO_OUTPUT_MAP
        made, whole = kept(last.first_output), kept(self.call.first_output)
        if same(made, whole) or (made.shape == self.record.before.shape and adds(made, self.record.before, whole)):
            return last
        return "what the last linear map returns is not what the attention module returns"

    def _even_heads(self, last: Call) -> Heads | None:
        """Return the number of heads, equal to the queries'; None where a module in between sees another number."""
        query = self._query_value()
        columns = next(seen.shape[-1] for seen in last.inputs.values() if seen.floating)
        if isinstance(query, str) or columns % query.shape[1]:
            return None
        heads, features = query.shape[1], columns // query.shape[1]
        attended = max((f.at for f in self.functions), default=0)
        between = [c for c in self.record.calls if attended < c.entered < last.entered and c.inside(self.call)]
        shapes = [seen.shape for call in between for seen in call.inputs.values()]
        if any(len(shape) == 4 and heads not in shape[1:] for shape in shapes):
            return None
        return Heads(heads=heads, features=features, head_stride=features)

    def _outputs(self, last: Call | str) -> FoundPoints:
        call = self.call
        if not isinstance(last, str) and not same(_value(last), _value(call)):
            call = last  # the module's own output includes the residual
        return {"attn_out": output_of(self.record, call), "attn_out_post": self._post(call)}

    def _post(self, call: Call) -> ModuleTensor | str:
        first = self.blocks.first
        if first is None or first.block is None or not same(_value(first.block), _value(call)):
            return "what attention adds to the residual is not the output of one module"
        if first.post is None:
            return added_as_it_is("attn_out", first.scale)
        return output_of(self.record, first.post)


def _heads_of(seen: RecordedTensor | None) -> Tensor:
    """Return [B, H, D] of keys or values on their way into the cache."""
    value = kept(seen)
    return value.reshape(PROMPTS, -1, value.shape[-1])


def _value(call: Call) -> Tensor | None:
    return call.first_output.value if call.first_output else None


_WHY_NO_MIDDLE = {
    "parallel": "attention and MLP of this layer are added to the residual at once, so there is nothing between them",
    "one": "this layer is a single block",
    "unknown": "no module of this layer is given a residual to which one module's output is added",
}


def middle_place(record: LayerRecord, blocks: Blocks) -> ModuleTensor | str:
    if blocks.mid is None:
        return _WHY_NO_MIDDLE[blocks.kind]
    call, key = blocks.mid
    if record.count(call.module) != 1:
        return f"{type(call.module).__name__} is called {record.count(call.module)} times in a layer"
    return ModuleTensor(module=call.module, side="input", key=key, in_place=True)


def mlp_places(record: LayerRecord, blocks: Blocks) -> FoundPoints:
    contribution = blocks.first if blocks.kind == "one" else blocks.second
    if contribution is None:
        return dict.fromkeys(MLP_POINTS, "what the MLP of this layer adds is not the output of one module")
    block = contribution.block
    if block is None:
        return {**dict.fromkeys(MLP_POINTS, "no one module makes what the last norm of this layer is given")}
    if record.uses_cache(block):
        return dict.fromkeys(MLP_POINTS, "this layer has no MLP")
    maps = _maps(record, blocks, block)
    found: FoundPoints = {
        "mlp_in": input_of(record, maps[0] if maps and maps[-1] is block else block),
        "mlp_out": output_of(record, block),
        "mlp_out_post": _post(record, contribution),
    }
    found.update(_hidden(record, block, maps))
    return found


def _post(record: LayerRecord, contribution: BlockContribution) -> ModuleTensor | str:
    if contribution.post is not None:
        return output_of(record, contribution.post)
    return added_as_it_is("mlp_out", contribution.scale)


def _maps(record: LayerRecord, blocks: Blocks, block: Call) -> list[Call]:
    """Return the linear maps of the MLP in order. Where the layer itself holds them, `block` is the last one."""
    inner = _linear_calls(record, block)
    if inner or blocks.mid is None:
        return inner
    start = blocks.mid[0].entered
    maps = set(linears(record.span.module))
    return [call for call in record.calls if call.module in maps and start < call.entered <= block.entered]


def _hidden(record: LayerRecord, block: Call, maps: list[Call]) -> FoundPoints:
    """Return the points of the MLP's hidden layer: the inputs of its activation and of its last linear map."""
    last = next((call for call in maps if _ends(record, call, block)), None)
    if last is None or len(maps) < 2:
        return dict.fromkeys(("mlp_pre", "mlp_post"), "no one linear map makes the MLP's output (a mixture of experts)")
    activations = [call for call in record.calls if maps[0].left < call.entered < last.entered and _activates(call)]
    if len(activations) == 1:
        pre = input_of(record, activations[0])
    else:
        pre = f"the MLP has {len(activations) or 'no'} activation modules"
    return {"mlp_pre": pre, "mlp_post": input_of(record, last)}


def _ends(record: LayerRecord, call: Call, block: Call) -> bool:
    return same(record.shaped(call.first_output), record.shaped(block.first_output))


def _activates(call: Call) -> bool:
    """True for a module without weights that changes its input and keeps its shape: not a dropout in eval."""
    made, given = call.first_output, next(iter(call.inputs.values()), None)
    if made is None or given is None or made.shape != given.shape:
        return False
    bare = next(call.module.parameters(), None) is None and next(call.module.children(), None) is None
    return bare and not same(made.value, given.value)


def find_places(record: LayerRecord) -> FoundPoints:
    """Return the points that lie inside a layer. Those at its borders belong to the gates."""
    blocks = find_blocks(record)
    return {**attention_places(record, blocks), "resid_mid": middle_place(record, blocks), **mlp_places(record, blocks)}
