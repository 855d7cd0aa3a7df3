"""The places of a layer's attention points, from the tensors that the cache and the attention function were given."""

from __future__ import annotations

from torch import Tensor

from djinn_jupyter.engine.model.discovery.blocks import Blocks
from djinn_jupyter.engine.model.discovery.heads import (
    columns_by_bits,
    columns_by_factor,
    distinct,
    flat,
)
from djinn_jupyter.engine.model.discovery.layer_list import same
from djinn_jupyter.engine.model.discovery.layer_record import LayerRecord, adds
from djinn_jupyter.engine.model.discovery.point import (
    FoundPoints,
    Inner,
    ModuleTensor,
    added_as_it_is,
    input_of,
    output_of,
)
from djinn_jupyter.engine.model.discovery.recording import (
    PROMPTS,
    CacheCall,
    Call,
    FunctionCall,
    RecordedTensor,
    kept,
    linears,
)
from djinn_jupyter.engine.model.hooks.layout import Heads
from djinn_jupyter.wire.sites import ATTENTION_POINTS

UNCOMPARED = "no single call compares queries with keys"
COMPRESSED = "the cache keeps a compressed form, from which keys and values are made anew at every pass"

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
    """Return the calls that are surely attention: sdpa, and softmax over maps with heads."""
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
        """Return as many heads as there are queries; None where a module in between sees another number of them."""
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
