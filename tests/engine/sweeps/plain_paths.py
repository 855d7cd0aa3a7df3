"""Path patching by hand: hooks on the plain model's own modules, two forwards a path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tests.engine.sweeps.plain_sweep import layers_of, metric_of

A, B = 17, 42
RANK = {point: number for number, point in enumerate(("q", "z", "attention", "mlp_in", "mlp", "end"))}
Hook = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The modules of a family's layer that paths need; `inside` the attention module but for `mlp` and `added`."""

    attention: str  # whose output is added to the residual, before a norm where there is one
    mlp: str
    output: str = "o_proj"  # its input are the heads' outputs
    queries: str = "q_proj"
    fused: str | None = (
        None  # how the heads lie where queries, keys and values are one: "thirds", "triples", "queries first"
    )


AS_LLAMA = ("llama", "gemma2", "gemma3_text", "mistral", "olmo2", "mixtral", "cohere", "qwen3", "starcoder2")
NAMES = {
    **dict.fromkeys(AS_LLAMA, Names(attention="self_attn", mlp="mlp")),
    "gpt_bigcode": Names(attention="attn", mlp="mlp", output="c_proj", queries="c_attn"),
    "long rotary": Names(attention="self_attn", mlp="mlp", queries="qkv_proj", fused="queries first"),
    "gpt2": Names(attention="attn", mlp="mlp", output="c_proj", queries="c_attn", fused="thirds"),
    "gpt_neox": Names(attention="attention", mlp="mlp", output="dense", queries="query_key_value", fused="triples"),
    "bloom": Names(
        attention="self_attention",
        mlp="mlp.dense_4h_to_h",
        output="dense",
        queries="query_key_value",
        fused="triples",
    ),
}


class PlainPaths:
    """Paths from heads' outputs to queries of heads, the MLP's input or the logits, in the line `base`."""

    def __init__(self, model: Any, family: str, base: tuple[int, ...], source: tuple[int, ...]) -> None:
        self.model, self.names, self.base = model, NAMES[family], base
        self.heads = getattr(model.config, "num_attention_heads", None) or model.config.n_head
        self.layers = list(layers_of(model))
        self.frozen = self._seen(base, {site: [] for site in self._written()})
        heads = [("z", layer) for layer in range(len(self.layers))]
        self.own, self.other = (self._seen(line, {site: [] for site in heads}) for line in (base, source))

    def metric(self, sender: tuple[int, int], receivers: Sequence[tuple[str, int, int | None]]) -> float:
        """Return the metric with the path in place; of a sender behind its receivers, that of the line as it is."""
        layer, head = sender
        here = (layer, RANK["z"])
        if all((at, RANK[point]) < here for point, at, _ in receivers):
            return self._run(self.base, {}, {})
        behind = {(point, at): kept for (point, at), kept in self.frozen.items() if (at, RANK[point]) > here}
        frozen = {site: _replacing(kept) for site, kept in behind.items() if site != ("attention", layer)}
        met: dict[tuple[str, int], list[Tensor]] = {(point, at): [] for point, at, _ in receivers}
        self._run(self.base, {**frozen, ("z", layer): self._patching(layer, head)}, met)
        each: dict[tuple[str, int], Hook] = {}
        for point, at, receiver in receivers:
            seen = met[point, at][0]
            before = each.get((point, at), lambda raw: raw)
            each[point, at] = _then(before, _replacing(seen) if receiver is None else self._of_head(seen, receiver))
        return self._run(self.base, each, {})

    def _written(self) -> list[tuple[str, int]]:
        return [(point, layer) for layer in range(len(self.layers)) for point in ("attention", "mlp")]

    def _seen(self, line: tuple[int, ...], met: dict[tuple[str, int], list[Tensor]]) -> dict[tuple[str, int], Tensor]:
        self._run(line, {}, met)
        return {site: seen[0] for site, seen in met.items()}

    def _run(
        self,
        line: tuple[int, ...],
        put: dict[tuple[str, int], Hook],
        met: dict[tuple[str, int], list[Tensor]],
    ) -> float:
        with ExitStack() as stack:
            for site in {**met, **put}:
                stack.enter_context(self._hooked(site, put.get(site), met.get(site)))
            return metric_of(self.model, line, A, B)

    @contextmanager
    def _hooked(self, site: tuple[str, int], put: Hook | None, met: list[Tensor] | None) -> Iterator[None]:
        module, before = self._module(*site)

        def at(raw: Tensor) -> Tensor:
            raw = raw if put is None else put(raw)
            if met is not None:
                met.append(raw.clone())
            return raw

        def entering(module: Any, args: Any) -> Any:
            return (at(args[0]), *args[1:])

        def leaving(module: Any, args: Any, output: Any) -> Any:
            return (at(output[0]), *output[1:]) if isinstance(output, tuple) else at(output)

        hook = module.register_forward_pre_hook(entering) if before else module.register_forward_hook(leaving)
        yield
        hook.remove()

    def _module(self, point: str, layer: int) -> tuple[Any, bool]:
        """Return the module that has it, and whether as its input."""
        names, whole = self.names, self.layers[layer]
        attention = whole.get_submodule(names.attention)
        mlp = whole.get_submodule(names.mlp)
        written = attention.get_submodule(names.output) if self.names is NAMES["bloom"] else attention
        places = {
            "attention": (written, False),
            "mlp": (mlp, False),
            "z": (attention.get_submodule(names.output), True),
            "q": (attention.get_submodule(names.queries), False),
            "mlp_in": (whole.get_submodule("mlp"), True),
            "end": (whole, False),
        }
        return places[point]

    def _patching(self, layer: int, head: int) -> Hook:
        def put(raw: Tensor) -> Tensor:
            changed = self.own["z", layer].clone()
            self._head(changed, head).copy_(self._head(self.other["z", layer], head))
            return changed

        return put

    def _head(self, raw: Tensor, head: int) -> Tensor:
        return raw.unflatten(-1, (self.heads, -1))[..., head, :]

    def _of_head(self, met: Tensor, head: int) -> Hook:
        def put(raw: Tensor) -> Tensor:
            changed = raw.clone()
            self._query(changed, head).copy_(self._query(met, head))
            return changed

        return put

    def _query(self, raw: Tensor, head: int) -> Tensor:
        if self.names.fused == "thirds":
            return self._head(raw[..., : raw.shape[-1] // 3], head)
        if self.names.fused == "triples":
            return raw.unflatten(-1, (self.heads, 3, -1))[..., head, 0, :]
        if self.names.fused == "queries first":
            return raw.unflatten(-1, (self.heads + 2 * self.model.config.num_key_value_heads, -1))[..., head, :]
        return self._head(raw, head)


def _replacing(kept: Tensor) -> Hook:
    return lambda raw: kept.clone()


def _then(one: Hook, other: Hook) -> Hook:
    return lambda raw: other(one(raw))
