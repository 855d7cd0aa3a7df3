"""The probes that run at load, and the conclusions from them.

Seven forward passes: one finds the layers; another prompt and a decode step find the axes; one tests causality; one has
other values where nothing seems to read them; many one-token prompts identify the tensors; and the same with every
middle residual changed in place tests whether such an edit takes effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from djinn_jupyter.engine.model.discovery import make_taps, matrices
from djinn_jupyter.engine.model.discovery.heads import flat
from djinn_jupyter.engine.model.discovery.layer_list import find_stack, same
from djinn_jupyter.engine.model.discovery.layer_record import LayerRecord
from djinn_jupyter.engine.model.discovery.modules import ModelModules
from djinn_jupyter.engine.model.discovery.points import FoundPoints, ModuleTensor, find_blocks, find_places
from djinn_jupyter.engine.model.discovery.recording import (
    LENGTHS,
    PROMPTS,
    Border,
    Hook,
    RecordedOperations,
    Recording,
    changing,
    kept,
    linears,
    mark_unread,
    record,
    spread_tokens,
    tensors_of,
    unread,
)
from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import HOOKS, ModelRefused
from djinn_jupyter.wire.sites import Site

Taps = dict[tuple[str, int | None], Tap | str]
# relative; 2e-5 was the most among 74 families (chunked linear attention), 3.5e-3 the least of an encoder
CAUSAL = 1e-3
COPIED = "the layer keeps a copy of this residual, which an edit would not reach"
EMBEDDED = "layers beyond the first read the embedding too, and a resumed pass computes it anew, without the edit"


class Discovery:
    """The knowledge of one model, probe by probe."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        short, long = (spread_tokens(model, length)[None] for length in LENGTHS)
        self.stack, first = find_stack(model, short)
        keep_last = self.stack.keep_last
        operations = RecordedOperations()
        longer = record(model, long, keep_last=keep_last, within=operations.of)
        self._check_causal(short, first, longer)
        unread = self._unread(short, first, longer, operations)
        self.found: list[FoundPoints] = []
        self.matrices: list[matrices.FoundMatrices] = []
        self.groups: list[tuple[tuple[int, ...] | str, bool]] = []
        self.others: list[dict[int | str, Tensor]] = []
        many = self._look_at_layers(spread_tokens(model, PROMPTS)[:, None], self._learn)
        step = record(model, spread_tokens(model, 1)[None], cache=first.cache, keep_last=keep_last)
        self.probes = make_taps.Probes(self.stack, (first, longer, many, step), unread)
        self._check_absent()
        self.fixed = self._check_by_editing()
        self.ends = self._ends(many)
        self.positions = matrices.find_positions(many, model.get_input_embeddings(), self.first_given)
        self.changed_embedding = self._changed_embedding(many)
        self.changed_head = self._changed_head(many)

    def _unread(
        self, tokens_1T: Tensor, first: Recording, longer: Recording, operations: RecordedOperations
    ) -> frozenset[Border]:
        """Return the module borders whose values nothing reads: with other numbers there the logits are the same."""
        assert longer.logits is not None and longer.cache is not None
        mark_unread(longer, operations.recorded, [longer.logits, *tensors_of(longer.cache)])
        borders = unread(longer)
        if not borders or self._same_with_others(tokens_1T, first, borders):
            return frozenset(borders)
        kinds = {type(module) for module, _, _ in borders}  # the kernels of some may be unseen
        each = [[border for border in borders if isinstance(border[0], kind)] for kind in kinds]
        return frozenset(border for some in each if self._same_with_others(tokens_1T, first, some) for border in some)

    def _same_with_others(self, tokens_1T: Tensor, first: Recording, borders: list[Border]) -> bool:
        again = record(self.model, tokens_1T, hooks=lambda recording: changing(borders), keep_last=self.stack.keep_last)
        assert first.logits is not None and again.logits is not None
        return same(first.logits, again.logits)

    def _check_causal(self, tokens_1T: Tensor, first: Recording, longer: Recording) -> None:
        """Raise ModelRefused where another token at the end changes earlier positions."""
        axis = self._position_axis(first, longer)
        other = tokens_1T.clone()
        other[:, -1] = tokens_1T[:, 0]
        last = self.stack.layers[-1]
        again = record(self.model, other, keep=lambda module: module is last, keep_last=self.stack.keep_last)
        one, two = (kept(recording.of(last)[0].first_output) for recording in (first, again))
        allowed = max(CAUSAL, 4 * torch.finfo(one.dtype).eps)
        one, two = (value.narrow(axis, 0, LENGTHS[0] - 1).float() for value in (one, two))
        if float((one - two).norm()) > allowed * float(one.norm()):
            raise ModelRefused.inexact(
                type(self.model).__name__,
                "what a position holds depends on tokens after it, so it is no causal language model",
                *_meant_as_encoder(self.model),
            )

    def _check_absent(self) -> None:
        """Raise ModelRefused where another text runs layers that one text did not run."""
        run = {call.module for recording in self.probes.recordings for call in recording.calls}
        changing = next((path for path in self.stack.absent if self.model.get_submodule(path) in run), None)
        if changing is not None:
            raise ModelRefused.inexact(
                type(self.model).__name__, f"it runs its layer {changing} for some texts and not for others"
            )

    def _position_axis(self, first: Recording, longer: Recording) -> int:
        """Return the hidden state's axis with one row per token. A width may be as large as the prompt is long."""
        short, long = (recording.of(self.stack.layers[-1])[0].first_output for recording in (first, longer))
        assert short is not None and long is not None
        sizes = list(zip(short.shape, long.shape, strict=True))
        if sizes.count(LENGTHS) != 1:
            raise ModelRefused.inexact(
                type(self.model).__name__,
                "its hidden state has no axis with one row a token: "
                f"{LENGTHS[0]} tokens make {short.shape} of it and {LENGTHS[1]} tokens {long.shape}",
            )
        return sizes.index(LENGTHS)

    def _look_at_layers(
        self,
        tokens_BT: Tensor,
        look: Callable[[int, LayerRecord], None],
        change: Callable[[], Iterator[Hook]] | None = None,
    ) -> Recording:
        """Run a pass that calls `look` on each layer's record when the layer ends, then frees its copies."""

        def hooks(recording: Recording) -> Iterator[Hook]:
            for index, layer in enumerate(self.stack.layers):
                yield layer, None, self._after(recording, index, look)
            if change is not None:
                yield from change()

        return record(self.model, tokens_BT, keep=lambda module: True, hooks=hooks, keep_last=self.stack.keep_last)

    def _after(
        self, recording: Recording, index: int, look: Callable[[int, LayerRecord], None]
    ) -> Callable[[nn.Module, Any, Any], None]:
        def after(module: nn.Module, args: Any, output: Any) -> None:
            layer = LayerRecord.of(recording, module, self.stack.forms[index].argument)
            with recording.paused():
                look(index, layer)
            recording.release(layer.span)

        return after

    def _learn(self, index: int, layer: LayerRecord) -> None:
        self.found.append(find_places(layer))
        self.matrices.append(matrices.find_matrices(layer, self.found[-1]))
        self.groups.append(matrices.find_groups(layer, self.found[-1]))
        self.others.append(self._arguments(index, layer))
        if index == 0:
            self.first_given = flat(layer.before)

    def _arguments(self, index: int, layer: LayerRecord) -> dict[int | str, Tensor]:
        """Return the layer's tensor arguments besides the hidden state."""
        hidden = self.stack.forms[index].argument
        return {s: seen.value for s, seen in layer.span.inputs.items() if s != hidden and seen.value is not None}

    def _check_by_editing(self) -> str | None:
        """Change every middle residual in place, with other tokens, and drop those where the edit has no effect.

        Returns why the embedding must not be edited, where layers get another tensor that depends on the tokens.
        """
        takes: list[bool] = []
        depends: list[bool] = []

        def look(index: int, layer: LayerRecord) -> None:
            takes.append(self._still_middle(index, layer))
            now = self._arguments(index, layer)
            depends.append(any(s in now and not same(now[s], value) for s, value in self.others[index].items()))

        self._look_at_layers(spread_tokens(self.model, PROMPTS, offset=1)[:, None], look, self._change_middles)
        for found, taken in zip(self.found, takes, strict=True):
            if isinstance(found["resid_mid"], ModuleTensor) and not taken:
                found["resid_mid"] = COPIED
        return EMBEDDED if any(depends) else None

    def _change_middles(self) -> Iterator[Hook]:
        for found in self.found:
            place = found["resid_mid"]
            if isinstance(place, ModuleTensor):
                yield place.module, _changing(place.key), None

    def _still_middle(self, index: int, layer: LayerRecord) -> bool:
        place = self.found[index]["resid_mid"]
        if not isinstance(place, ModuleTensor):
            return False
        blocks = find_blocks(layer, edited=True)
        return blocks.kind == "two" and blocks.mid is not None and blocks.mid[0].module is place.module

    def _ends(self, many: Recording) -> dict[str, tuple[nn.Module, int | str | None] | str]:
        """Return the modules that make the embedding and the head's input."""
        embedding: nn.Module = self.model.get_input_embeddings()
        return {"embed": (embedding, None), "ln_final": self._before_head(many)}

    def _changed_embedding(self, many: Recording) -> bool:
        """Return whether the first layer's input differs from the embedding, with positions added or not."""
        made = next((call.first_output for call in many.of(self.model.get_input_embeddings())), None)
        return isinstance(self.positions, str) and (made is None or not same(flat(kept(made)), self.first_given))

    def _changed_head(self, many: Recording) -> str | None:
        """Return the path of the head where the model computes other logits from its output."""
        head = self.model.get_output_embeddings()
        made = many.of(head)[-1].first_output if isinstance(head, nn.Module) and many.of(head) else None
        if made is None or many.logits is None or same(kept(made).to(many.logits.dtype), many.logits):
            return None
        return str(next(path for path, module in self.model.named_modules() if module is head))

    def _before_head(self, many: Recording) -> tuple[nn.Module, int | str | None] | str:
        last = self.stack.spans(many)[-1]
        calls = [call for call in many.calls if call.left > last.left]
        head = self.model.get_output_embeddings()
        maps = {head} if isinstance(head, nn.Module) else set(linears(self.model))
        given = [call for call in calls if call.module in maps and call.entered > last.left]
        value = next((seen.value for call in given[-1:] for seen in call.inputs.values()), None)
        if value is None:
            return "no module makes the logits"
        for call in sorted(calls, key=lambda call: -call.entered):
            made = call.first_output
            if call in given or made is None or made.value is None or made.value.shape != value.shape:
                continue
            if torch.equal(made.value.to(value.dtype), value):
                return call.module, next(iter(call.outputs))
        return "no module returns what the head is given"

    def boundaries(self) -> tuple[Tap, ...]:
        """Return the taps of the hidden state before each layer and after the last one."""
        taps = []
        for index, layer in enumerate((*self.stack.layers, self.stack.layers[-1])):
            last = index == len(self.stack.layers)
            key = next(iter(self.probes.calls(layer, None)[0].outputs)) if last else self.stack.forms[index].argument
            side = "output" if last else "input"
            shapes = self.probes.border(layer, None, side, key)
            rows = "it is not there in every pass" if shapes is None else make_taps.rows_of(shapes)
            if isinstance(rows, str) or shapes is None:
                raise ModelRefused.inexact(type(self.model).__name__, f"its hidden state cannot be read: {rows}")
            site = Site(point="resid_pre", layer=index)
            form = make_taps.form_of(site, rows, shapes[0])
            taps.append(
                Tap(
                    site=site,
                    kind="boundary",
                    stage=min(index, len(self.stack.layers) - 1),
                    boundary=index,
                    layout=rows,
                    **form._asdict(),
                )
            )
        return tuple(taps)

    def taps(self, boundaries: tuple[Tap, ...]) -> Taps:
        taps: Taps = {}
        for index, found in enumerate(self.found):
            taps["resid_pre", index] = boundaries[index]
            taps["resid_post", index] = make_taps.boundary_tap(
                Site(point="resid_post", layer=index), boundaries[index + 1], index
            )
            for point, place in found.items():
                taps[point, index] = make_taps.tap_of(self.probes, Site(point=point, layer=index), place)
        for point, end in self.ends.items():
            taps[point, None] = end if isinstance(end, str) else self._end_tap(point, *end)
        taps["logits", None] = self._logits()
        return taps

    def _end_tap(self, point: str, module: nn.Module, key: int | str | None) -> Tap | str:
        tap = make_taps.border_tap(self.probes, Site(point=point), module, None, "output", key)
        if isinstance(tap, Tap) and point == "embed" and self.fixed is not None:
            return replace(tap, editable=False, reason=self.fixed)
        return tap

    def _logits(self) -> Tap:
        logits = self.probes.recordings[0].logits
        assert logits is not None
        layout = PositionLayout(position=1, batch=0)
        stage = len(self.stack.layers)
        site = Site(point="logits")
        return Tap(site=site, kind="result", stage=stage, axes="T D", layout=layout, width=logits.shape[-1])

    def cache_layers(self) -> tuple[tuple[int, ...], ...]:
        recording = self.probes.recordings[0]
        return tuple(
            tuple(sorted({c.layer for c in recording.cache_calls if span.entered < c.at < span.left}))
            for span in self.probes.spans[0]
        )

    def modules(self, boundaries: tuple[Tap, ...]) -> ModelModules:
        return ModelModules(self.model, self.probes, boundaries, self.fixed)


def _changing(key: Any) -> Callable[[nn.Module, Any, dict[str, Any]], None]:
    def change(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        tensor: Tensor = args[key] if isinstance(key, int) else kwargs[key]
        tensor.mul_(-0.5)

    return change


def _meant_as_encoder(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the advice for a model that could be an encoder or a decoder; empty for others."""
    if getattr(model.config, "is_decoder", None) is not False:
        return ()
    return (f"If it was trained as a decoder, add is_decoder: true to its config.json. Else {HOOKS}",)
