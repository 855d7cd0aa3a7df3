"""Run the model's own forward, entered from a frame and left at a tap or a layer boundary; and the sentence for a
device that runs out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry
from djinn_jupyter.engine.memory.weights.residence import Weights
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.attention import head_blocks, head_columns
from djinn_jupyter.engine.model.hooks.gates import Arguments, Gates, Leave, RunLayer
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.model.loading.load import Frequencies, RotaryBuffers, switches_at, takes_positions
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.passes.controller import (
    Admit,
    Completed,
    Outcome,
    PassController,
    Plan,
    SavedStates,
    failure_told,
)
from djinn_jupyter.engine.passes.epilogue import AttentionSwitch, ManyRows, anatomy_under
from djinn_jupyter.engine.passes.frame import Frame, passed_over
from djinn_jupyter.engine.passes.site_value import Lens
from djinn_jupyter.engine.system.device import out_of_memory, to_home
from djinn_jupyter.errors import ModelRefused, OutOfDeviceMemory, SlabFull, UsageError
from djinn_jupyter.modules.engine.arithmetic import HeldAdapter
from djinn_jupyter.parallel.graphs import DecodeGraphs
from djinn_jupyter.parallel.leader import Leader


def no_memory_for(work: str, error: RuntimeError, advice: str) -> OutOfDeviceMemory:
    return OutOfDeviceMemory(f"The device has no memory left for {work}: {first_line(error).rstrip('.')}. {advice}")


@contextmanager
def device_memory_for(work: str, advice: str) -> Iterator[None]:
    """Raise OutOfDeviceMemory where the device has no memory left inside this block."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise no_memory_for(work, error, advice) from None


# Run the model's own forward, entered from a frame and left at a tap or a layer boundary. Each entry sets the state
# that other sessions may have changed (cache lengths, states, rotary buffers, experts) and removes its hooks in
# `finally`. One session at a time, one compute stream; logits of the last position only, unless the plan says
# otherwise, with the cache in use, as `generate` does.

Switch = Callable[[], AbstractContextManager[None]]


class EpilogueHooks:
    """Skips every layer: `hidden` goes straight to the final norm and the head."""

    def __init__(self, boundary: int, hidden_1TD: Tensor | None) -> None:
        self.boundary = boundary
        self.hidden: Tensor | None = hidden_1TD

    def receive(self, boundary: int, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        return hidden

    def about_to_run(self, layer: int, hidden: Tensor, kwargs: dict[str, Any]) -> None:
        raise AssertionError("no layer runs on the way through the epilogue")

    def has_run(self, layer: int, output: Any) -> None: ...

    def given(self) -> Mapping[int | str, Any]:
        return {}


class Forward:
    """Enters passes of one model. Holds no session."""

    def __init__(
        self,
        model: PreTrainedModel,
        anatomy: Anatomy,
        geometry: CacheGeometry,
        weights: Weights,
        graphs: DecodeGraphs | None = None,
        leader: Leader | None = None,
    ) -> None:
        """`leader` calls the layers of a model that is split among ranks."""
        self.model, self.anatomy, self.geometry, self.weights = model, anatomy, geometry, weights
        self.graphs, self.split = graphs, leader is not None
        self._catch = catch if leader is None else leader.catch
        self.attention = str(model.config.get_text_config()._attn_implementation)
        self._attending: Switch = nullcontext
        self._others: dict[str, Forward] = {}
        self.adapter: HeldAdapter | None = None
        self._plain: Forward | None = None  # the same without its adapter
        self.device: torch.device = next(model.parameters()).device
        self.gates = Gates(anatomy.layers, anatomy.forms)
        self._many_rows = ManyRows(model)
        self.layers = len(anatomy.layers)
        self._homes = [next((weight.device for weight in layer.parameters()), self.device) for layer in anatomy.layers]
        self._rotary = RotaryBuffers(model)
        self.switches_at = switches_at(model)
        self.frequencies = Frequencies(model)
        self._keeps_attention = all(layer.kind in ("full", "window", "none") for layer in geometry.layers)
        self._switches_experts = self.device.type != "cpu" and "grouped_mm" in _experts(model)
        self._takes_positions = takes_positions(model)

    def attending(self, attention: str) -> Forward:
        """Return the entry into passes of the same model with this attention. Its points are found at the first
        request, by some forward passes. Raises UsageError where the family has no such attention."""
        if attention == self.attention:
            return self
        if self.split:
            raise UsageError(
                f"A model that --tensor-parallel splits computes one attention, {self.attention}: load it with "
                f"--attention {attention}."
            )
        if self._plain is not None:
            return self._plain.attending(attention).adapted(self.adapter)
        if attention not in self._others:
            self._others[attention] = self._made_to_attend(attention)
        return self._others[attention]

    def _made_to_attend(self, attention: str) -> Forward:
        switch = AttentionSwitch(self.model, attention)
        held = [layer.cache_layer for layer in self.geometry.layers if layer.kind != "none"]
        self._rotary.reset()
        room = device_memory_for(f"finding the points of {attention} attention", "Close sessions, then try again.")
        with room, self.weights.passing():
            anatomy = anatomy_under(switch, self.gates, held, self.anatomy)
        other = copy(self)
        other.anatomy, other.attention, other._attending = anatomy, attention, switch.on
        other.graphs, other._others = None, {self.attention: self}
        return other

    def adapted(self, adapter: HeldAdapter | None) -> Forward:
        """Return the entry into passes of the same model with an adapter, None for the model alone. It has the same
        points; its layers run without graphs, whose modules are the model's own."""
        plain = self._plain or self
        if adapter is self.adapter or adapter is None:
            return self if adapter is self.adapter else plain
        other = copy(plain)
        other.adapter, other._plain, other.graphs = adapter, plain, None
        other._attending = partial(_both, plain._attending, adapter.on)
        return other

    def home_at(self, boundary: int) -> torch.device:
        """Return the device of hidden states at a boundary: the device of the layer after it."""
        return self._homes[min(boundary, self.layers - 1)]

    def home_of(self, tap: Tap) -> torch.device:
        """Return the device of a tap."""
        if tap.boundary is not None:
            return self.home_at(tap.boundary)
        return self._homes[tap.stage] if 0 <= tap.stage < self.layers else self.device

    def home_of_cache_layer(self, number: int) -> torch.device:
        """Return the device of the layer that writes a layer of the cache."""
        writes = (at for at in range(self.layers) if number in self.anatomy.cache_layers_of(at))
        return self._homes[next(writes, 0)]

    @torch.inference_mode()
    def enter(
        self,
        frame: Frame,
        plan: Plan,
        cache: PagedCache,
        saved_states: SavedStates,
        admit: Admit,
        *,
        alone: bool = False,
    ) -> Outcome:
        """Run from `frame` to a halt, a yield or the end of the pass; at the end commit the cache. `admit` is called
        before anything is kept of a pass that is left early. `alone`: no other pass is in progress.

        SlabFull leaves everything as it was, except for pages reserved and layers run for nothing. OutOfDeviceMemory
        leaves the session at its last committed step.
        """
        end = frame.committed + len(frame.tokens)
        cache.reserve(frame.committed, end)
        self._put_back(frame, cache, saved_states)
        controller = PassController(frame, plan, self.anatomy, cache, saved_states, self.lens_at, admit)
        undo = plan.undo()
        try:
            with failure_told(lambda: controller.layer, step=frame.step):
                logits = self._call(frame, controller, cache, alone)
        except Leave:
            if controller.left is None:
                raise ModelRefused("The forward pass was left without a stop; this is a fault of djinn.") from None
            return controller.left
        except SlabFull:
            undo()
            cache.restore_all(controller.states_before())
            cache.enter(frame.committed)
            raise
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            cache.restore_all(saved_states)
            cache.enter(frame.committed)
            raise no_memory_for(
                f"this pass over {len(frame.tokens)} tokens",
                error,
                "The session stands at its last committed step; close sessions or give a shorter prompt.",
            ) from None
        cache.commit(end)
        saved_states.clear()
        return Completed(logits_1TV=logits, layers_run=controller.layers_run)

    def _put_back(self, frame: Frame, cache: PagedCache, saved_states: SavedStates) -> None:
        """Restore the cache and the saved states to the state in which this frame can be entered."""
        if frame.hidden is None and frame.tap is None:
            saved_states.clear()
        if frame.start_states is not None:
            saved_states.clear()
            saved_states.update(frame.start_states)
        if frame.states is not None:
            cache.restore_all(frame.states)
        cache.enter(frame.committed)

    def _call(self, frame: Frame, controller: PassController, cache: PagedCache, alone: bool) -> Tensor:
        tokens_1T = torch.tensor([frame.tokens], device=self.device)
        arguments: dict[str, Any] = {self.geometry.cache_argument: cache, "use_cache": True}
        if not controller.plan.all_logits:
            arguments.update(self.anatomy.keep_last)
        if self._takes_positions:  # as `generate` passes them; Bamba derives wrong ones by itself
            arguments["position_ids"] = torch.tensor([frame.positions], device=self.device)

        def meet(tap: Tap, raw: Tensor) -> Tensor | None:
            return controller.meet(tap, raw) if self.gates.hooks is controller else None

        self._rotary.reset()
        taps = controller.taps()
        caught = self._catch([tap for tap in taps if tap.kind != "result"], meet) if taps else nullcontext()
        with (
            self._attending(),
            self.weights.passing(alone=alone),
            self._by_graphs(frame, taps, cache) as run_layer,
            self.gates.entered(controller, run_layer),
            self._experts_for(frame),
            self._head_for(controller.plan, taps),
            caught,
            self._passed_over(frame, controller),
        ):
            logits: Tensor = self.model(tokens_1T, **arguments).logits
            for tap in taps:
                if tap.kind == "result":
                    changed = controller.meet(tap, logits)
                    logits = logits if changed is None else changed
        return logits

    def _passed_over(self, frame: Frame, controller: PassController) -> AbstractContextManager[None]:
        """Return the context that skips the module of the frame's stop and the attention before it. They do run where
        ranks compute them together, and where they may hold states."""
        if self.split or self.geometry.recurrent_state_bytes:
            return nullcontext()
        keeping = controller.halting() if self._keeps_attention else ()
        return passed_over(frame, self.anatomy, keeping, controller.note_attended)

    def _by_graphs(
        self, frame: Frame, taps: Sequence[Tap], cache: PagedCache
    ) -> AbstractContextManager[RunLayer | None]:
        """Return the context in which graphs run layers without taps, for a pass over one token after others."""
        if self.graphs is None or not frame.committed or len(frame.tokens) != 1:
            return nullcontext()
        return self.graphs.passing(cache, {tap.stage for tap in taps})

    def _experts_for(self, frame: Frame) -> AbstractContextManager[Any]:
        """Return the context that selects the experts' kernel. `generate` runs decode steps of some mixtures with
        another kernel; so does this engine, for the same bits. Tokens extended from their last one take such a step
        too, though it is step 0 of a run."""
        if self._switches_experts and frame.committed and len(frame.tokens) == 1:
            model: Any = self.model
            context: AbstractContextManager[Any] = model._optimize_model_for_decode()
            return context
        return nullcontext()

    def _head_for(self, plan: Plan, taps: Sequence[Tap]) -> AbstractContextManager[None]:
        """Return the context in which the head computes only what the plan wants, where no tap after the layers is read
        and the model gives it only the last row."""
        behind = any(tap.stage >= self.layers for tap in taps)
        if plan.logits_of is None or plan.all_logits or behind or not self.anatomy.keep_last:
            return nullcontext()
        return head_blocks(self.model, plan.logits_of)

    def lens_at(self, tap: Tap) -> Lens | None:
        return self.lens if tap.width == self.anatomy.hidden_size and tap.axes == "T D" else None

    @torch.inference_mode()
    def lens(self, rows_nD: Tensor, tokens: Sequence[int] | None = None) -> Tensor:
        """Return logits [n, V] of the model's own epilogue (final norm, head, soft-caps, scales) for rows of the
        residual stream; [n, tokens] where only some are wanted, without computing others. Whether a family's epilogue
        allows that has to be tested."""
        return self.epilogue(rows_nD, tokens)

    @torch.inference_mode()
    def shared_lens(self, rows_nD: Tensor, tokens: Sequence[int] | None = None) -> Tensor:
        """Return the logits of rows of many sequences, which differ by rounding from a single row's."""
        with self._many_rows.multiplied(rows_nD.shape[0]):
            return self.epilogue(rows_nD, tokens)

    def epilogue(self, rows_nD: Tensor, tokens: Sequence[int] | None = None) -> Tensor:
        """Return the same logits, computed in the caller's autograd mode: with a graph where that records one."""
        epilogue = EpilogueHooks(self.layers, self.anatomy.of_lines(to_home(rows_nD, self.device)[None]))
        tokens_1n = torch.zeros((1, rows_nD.shape[0]), dtype=torch.long, device=self.device)
        columns = nullcontext() if tokens is None else head_columns(self.model, tokens)
        with self._attending(), self.weights.passing(), self.gates.entered(epilogue), columns:
            logits: Tensor = self.model(tokens_1n, use_cache=False).logits
        return logits[0]

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Let the caller run single layers with their own arguments in this block: weights awake, attention as here."""
        with self._attending(), self.weights.passing():
            yield

    @contextmanager
    def shared(self, rows: int) -> Iterator[None]:
        """Let sequences share calls of so many rows inside this block: weights awake, and matrices multiplied in the
        fastest way for many rows. These then differ from those of a sequence alone by rounding."""
        with self.weights.passing(), self._many_rows.multiplied(rows):
            yield

    @torch.inference_mode()
    def layer_arguments(self, tokens: tuple[int, ...], start: int, cache: Cache, *, lines: int) -> list[Arguments]:
        """Return the arguments that the model's own forward gives each layer for `lines` equal sequences, with the rows
        of `tokens` from `start` on; no layer runs."""
        positions = [range(start, len(tokens))] * lines
        return self._arguments([tokens[start:]] * lines, positions, cache)

    @torch.inference_mode()
    def batch_arguments(self, tokens: Sequence[Sequence[int]], cache: Cache) -> list[Arguments]:
        """Return the arguments that the model's own forward gives each layer for sequences of equally many tokens, from
        their beginnings; no layer runs."""
        return self._arguments(tokens, [range(len(tokens[0]))] * len(tokens), cache)

    @torch.inference_mode()
    def step_arguments(
        self, tokens: Sequence[int], positions: Sequence[int], cache: Cache, mask_BC: Tensor | None
    ) -> list[Arguments]:
        """Return the arguments for one token of each of several sequences, each at its own position; `mask_BC`: the
        columns of the cache that each sequence has."""
        return self._arguments([[one] for one in tokens], [range(one, one + 1) for one in positions], cache, mask_BC)

    def _arguments(
        self,
        tokens: Sequence[Sequence[int]],
        positions: Sequence[range],
        cache: Cache,
        mask_BC: Tensor | None = None,
    ) -> list[Arguments]:
        found: list[Arguments] = []

        def note(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.append((args, dict(kwargs)))
            if len(found) == self.layers:
                raise Leave

        shown = torch.tensor(tokens, device=self.device)
        arguments: dict[str, Any] = {self.geometry.cache_argument: cache, "use_cache": True}
        if mask_BC is not None:
            arguments["attention_mask"] = mask_BC
        if self._takes_positions:
            arguments["position_ids"] = torch.tensor(positions, device=self.device)
        self._rotary.reset()
        skipping = self.gates.entered(EpilogueHooks(self.layers, None))
        with ExitStack() as hooks, self._attending(), skipping, self.weights.passing():
            for layer in self.anatomy.layers:
                hooks.callback(layer.register_forward_pre_hook(note, with_kwargs=True).remove)
            try:
                self.model(shown, **arguments)
            except Leave:
                pass
        return found

    def crosses(self, committed: int, end: int) -> bool:
        """True where a pass over [committed, end) would read keys made with other rotary frequencies."""
        return self.switches_at is not None and 0 < committed <= self.switches_at < end


@contextmanager
def _both(one: Switch, other: Switch) -> Iterator[None]:
    with one(), other():
        yield


def _experts(model: PreTrainedModel) -> set[str | None]:
    found: Any = model.get_experts_implementation()
    return set(found.values()) if isinstance(found, dict) else {found}
