"""Direct logit attribution at a stop, and its recipe: the passes over its tokens up to the stop, and the request."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.loop import mailbox
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import edits, weight_reader
from djinn_jupyter.engine.passes.controller import Halted, Target, Unmarked
from djinn_jupyter.engine.passes.epilogue import Readout, on_host, readout
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.requests import inspection, recipes
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.session import queries, reports
from djinn_jupyter.engine.session.reports import LeadingSpaces
from djinn_jupyter.engine.session.residence import Blocked, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.engine.system.device import to_home
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.direct.request import Attribute, Attributed, AttributionRecipe
from djinn_jupyter.wire.readings import Contribution, NeuronParts
from djinn_jupyter.wire.sites import Site


def attribution_recipe(
    parts: MethodParts, session: Session, asked: Attribute, tokens: tuple[int, ...], position: int
) -> tuple[AttributionRecipe | None, str]:
    """Return the recipe of the parts at the present stop, for these `tokens`; None, with the reason, where the tokens
    alone do not lead to it."""
    way = recipes.way_to_stop(session)
    if way.unmade:
        return None, way.unmade
    recipe = AttributionRecipe(
        line=way.line,
        layer=way.boundary,
        tokens=tokens,
        heads=asked.heads,
        neurons=asked.neurons,
        position=position,
        ahead=asked.ahead,
        made=parts.circumstances(session, taps=way.taps),
        passes=way.passes,
    )
    return recipe, ""


# Observers of each module's addition to one row of the residual during a pass, and the check of their sum. Shapes: D
# features of the residual, H heads, F neurons.

POINTS: Final = ("attn_out", "mlp_out")
UNEXPLAINED: Final = {torch.float32: 1e-4, torch.float64: 1e-4}  # of the residual: more than rounding
UNEXPLAINED_IN_16_BITS: Final = 0.05


@dataclass(slots=True, kw_only=True)
class RowObserver(Unmarked):
    """Records one row of a value during a pass: [1, D]; with `by_head` each head's addition, [H, D]; with `by_neuron`
    the addition of all, [1, D], and their activations `neurons_F`."""

    tap: Tap
    row: int
    point: str
    by_head: bool = False
    by_neuron: bool = False
    values: list[Tensor] = field(default_factory=list)
    bias: Tensor | None = None
    neurons_F: Tensor | None = None

    def observe(self, site_value: SiteValue) -> None:
        if self.by_head:
            self.values, self.bias = _projected(self.tap, site_value.raw, self.row)
        elif self.by_neuron:
            self.neurons_F = site_value.value[self.row].detach().clone()
            self.bias = _mapped(self.tap, torch.zeros_like(self.neurons_F))
            self.values = [_mapped(self.tap, self.neurons_F) - self.bias]
        else:
            self.values = [site_value.value[self.row].detach().clone()]

    def bring(self, home: torch.device) -> None:
        """Move the recorded values to `home`."""
        self.values = [to_home(value, home) for value in self.values]
        self.bias = None if self.bias is None else to_home(self.bias, home)

    @property
    def of_bias(self) -> str:
        """The name of the point for the bias of its map."""
        return "mlp_bias" if self.by_neuron else "bias"


def watched(runtime: Runtime, layer: int, row: int, *, heads: bool, neurons: bool) -> Iterator[RowObserver]:
    """Yield observers of layer `layer`'s additions to the residual, by module. Raises UnknownSite where its heads or
    neurons have no additions of their own."""
    for point in POINTS:
        found = runtime.forward.anatomy.taps[f"{point}_post", layer]
        added = found if isinstance(found, Tap) else runtime.forward.anatomy.taps[point, layer]
        if isinstance(added, str):
            continue  # a layer without that module; the check of the sum finds what is missing
        if heads and point == "attn_out":
            yield RowObserver(
                tap=_heads_tap(runtime, layer, normed=isinstance(found, Tap)), row=row, point="z", by_head=True
            )
        elif neurons and point == "mlp_out":
            tap = _neurons_tap(runtime, layer, normed=isinstance(found, Tap))
            yield RowObserver(tap=tap, row=row, point="mlp_post", by_neuron=True)
        else:
            yield RowObserver(tap=added, row=row, point=point)


def _heads_tap(runtime: Runtime, layer: int, *, normed: bool) -> Tap:
    tap = runtime.forward.anatomy.taps["z", layer]
    if normed or isinstance(tap, str) or tap.heads is None or tap.module is None:
        why = "a norm stands between attention and the residual" if normed else _why_not_by_head(tap)
        raise UnknownSite(f"The heads of layer {layer} add nothing of their own to the residual: {why}.")
    return tap


def _neurons_tap(runtime: Runtime, layer: int, *, normed: bool) -> Tap:
    tap = runtime.forward.anatomy.taps["mlp_post", layer]
    if normed or isinstance(tap, str) or tap.module is None:
        why = "a norm stands between the MLP and the residual" if normed else str(tap)
        raise UnknownSite(f"The neurons of layer {layer} add nothing of their own to the residual: {why}.")
    adapter = runtime.forward.adapter
    if adapter is not None and any(part.module is tap.module for part in adapter.present):
        raise UnknownSite(
            f"The neurons of layer {layer} write through a map that the adapter {adapter.name} changes: they are not "
            "told apart; attribute to MLPs, without neurons."
        )
    return tap


def _why_not_by_head(tap: Tap | str) -> str:
    return tap if isinstance(tap, str) else "what its attention gives to the output map is not divided into heads"


def _projected(tap: Tap, raw: Tensor, row: int) -> tuple[list[Tensor], Tensor]:
    """Return each head's addition through the output map, and the map's bias; bypasses the hooks that called this."""
    module: Any = tap.module
    value = tap.read(raw)
    nothing = torch.zeros_like(value)
    empty = tap.write(torch.zeros_like(raw), nothing)

    def mapped(given: Tensor) -> Tensor:
        made: Tensor = module.forward(given)  # with the adapter of the pass
        return made.reshape(-1, made.shape[-1])[row].detach().clone()

    bias = mapped(empty)
    alone = []
    for head in range(tap.heads or 0):
        one = nothing.clone()
        one[row, head] = value[row, head]
        alone.append(mapped(tap.write(empty, one)) - bias)
    return alone, bias


def _mapped(tap: Tap, value_F: Tensor) -> Tensor:
    """Return the output of the module whose input is a value, [D]; bypasses the hooks that called this."""
    module: Any = tap.module
    made: Tensor = module.forward(value_F[None, None])
    return made[0, 0].detach().clone()


def require_whole(x_D: Tensor, seen: list[RowObserver], explained: str = "no logit") -> None:
    """Raise UnknownSite where the residual is not the sum of the observed values: the family scales or adds more."""
    parts = [value for one in seen for value in (*one.values, one.bias) if value is not None]
    total = sum((part.to(torch.float32) for part in parts), torch.zeros_like(x_D).float())
    size = float((x_D.float() - total).norm() / x_D.float().norm())
    if size > UNEXPLAINED.get(x_D.dtype, UNEXPLAINED_IN_16_BITS):
        raise UnknownSite(
            f"The outputs of attention and MLP do not sum to the residual of this model, so they explain {explained} "
            f"({size:.2%} of it is something else)."
        )


# Direct logit attribution at a stop: the contribution of each module's output to a logit. Changes nothing.

ROUNDED: Final = {torch.float32: 1e-4, torch.float64: 1e-4}  # of the largest part
ROUNDINGS_IN_16_BITS: Final = 8  # so many of the dtype's own


def handlers(parts: MethodParts) -> tuple[AttributionRequests, ...]:
    """Return the handlers of this method's requests."""
    return (AttributionRequests(parts),)


class AttributionRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._weights = parts, weight_reader.WeightReader(parts.runtime.forward)

    @handles(Attribute)
    def attribute(self, request: Attribute, session: Session, holder: mailbox.Holder) -> Steps[Attributed]:
        runtime = self._parts.runtime.of(session)
        frame = queries.stopped_frame(session)
        if frame.hidden is None or frame.boundary == 0:
            raise UnknownSite("No layer has run at this stop; step to a layer's output to attribute a logit to layers.")
        if frame.hidden.dim() != 3:
            raise UnknownSite("The residual of this model is several streams at once, so no logit is a sum of parts.")
        tokens = [inspection.token_id(runtime, token) for token in request.tokens]
        rows = edits.rows_of((request.position,), frame.positions)
        assert rows is not None
        through = runtime.forward.layers if request.ahead else frame.boundary
        by = {"heads": request.heads, "neurons": request.neurons}
        seen = [one for layer in range(through) for one in watched(runtime, layer, rows[0], **by)]
        first = RowObserver(tap=runtime.resolve(Site(point="resid_pre", layer=0)), row=rows[0], point="embedding")
        done = [one for one in seen if one.tap.stage < frame.boundary]
        entry = yield from _run(runtime, session, frame, [first, *done])
        x_D = frame.hidden[0, rows[0]]
        if through > frame.boundary:
            x_D = (yield from _run_on(runtime, session, frame, entry, seen[len(done) :]))[rows[0]]
        x_D = to_home(x_D, runtime.forward.device)  # where the final norm is
        for one in (first, *seen):
            one.bring(runtime.forward.device)
        norm = runtime.forward.anatomy.taps["ln_final", None]
        outs = [readout(runtime.forward.model, norm, runtime.forward.lens, x_D, token) for token in tokens]
        out = outs[0] if len(outs) == 1 else outs[0].minus(outs[1])
        neurons = yield from self._neurons(out, [one for one in seen if one.by_neuron])
        reply = _attributed(runtime, session, request, out, x_D, first, seen, frame.positions[rows[0]], tokens, neurons)
        made, unmade = attribution_recipe(self._parts, session, request, tuple(tokens), reply.position)
        reply = msgspec.structs.replace(reply, made=made, unmade=unmade)
        if frame.overrides or (request.ahead and session.rules_in_force):
            return reply
        require_whole(x_D, [first, *seen])
        return _noted(reply, x_D.dtype)

    def _neurons(
        self, out: Readout, seen: list[RowObserver]
    ) -> Generator[Blocked | None, None, tuple[NeuronParts, ...]]:
        """Return the part of each neuron: its activation times its row of the MLP's last map, read out."""
        found = []
        for one in seen:
            assert one.neurons_F is not None
            matrix_FD = self._weights.behind_neurons(one.tap.stage)
            values_F = on_host(one.neurons_F) * (on_host(matrix_FD) @ out.direction_D)
            found.append(NeuronParts(layer=one.tap.stage, values=to_array(values_F)))
            yield None
        return tuple(found)


def _run(
    runtime: Runtime, session: Session, frame: Frame, observers: list[RowObserver]
) -> Generator[Blocked | None, None, Frame]:
    """Run the pass once more, from its start to the boundary of the stop, with observers. Return the frame there."""
    tap = runtime.resolve(Site(point="resid_post", layer=frame.boundary - 1))
    target = Target(tap=tap, step=frame.step)
    with queries.isolated(session):
        start = frame.at_start()
        outcome = yield from queries.replay(runtime, session, start, (target,), ruled=False, observers=observers)
    assert isinstance(outcome, Halted)
    return outcome.frame


def _run_on(
    runtime: Runtime, session: Session, frame: Frame, entry: Frame, observers: list[RowObserver]
) -> Generator[Blocked | None, None, Tensor]:
    """Finish the stopped pass on the side, under its rules, with observers. Return the last residual, [T, D]. A stop
    inside a layer is entered at the layer's beginning, at `entry`, so that its modules before the stop are observed
    too."""
    if frame.inside and session.rules_in_force:
        raise UnknownSite("Under steering rules a pass is finished from a layer's output only: step on by a layer.")
    start = replace(entry, overrides=frame.overrides) if frame.inside else frame
    target = Target(tap=runtime.resolve(Site(point="resid_post", layer=runtime.forward.layers - 1)), step=frame.step)
    with queries.isolated(session):
        outcome = yield from queries.replay(runtime, session, start, (target,), ruled=True, observers=observers)
    assert isinstance(outcome, Halted) and outcome.frame.hidden is not None
    return outcome.frame.hidden[0]


def _attributed(
    runtime: Runtime,
    session: Session,
    request: Attribute,
    out: Readout,
    x_D: Tensor,
    first: RowObserver,
    seen: list[RowObserver],
    position: int,
    tokens: list[int],
    neurons: tuple[NeuronParts, ...],
) -> Attributed:
    boundary, layers = queries.stopped_frame(session).boundary, runtime.forward.layers
    through = layers if request.ahead else boundary
    notes = (f"Layers {boundary} to {layers - 1} lie ahead of the stop: the pass was finished on the side.",)
    logits_V = runtime.forward.lens(x_D[None])[0].to(torch.float32)
    ids = torch.tensor(tokens, dtype=torch.long, device=logits_V.device)
    read = reports.token_readings(runtime, logits_V, ids)
    logit = read[0].logit - (read[1].logit if len(read) > 1 else 0.0)
    found = [
        Contribution(point=one.point, layer=one.tap.stage, head=head if one.by_head else None, value=out.of(value))
        for one in seen
        if not one.by_neuron
        for head, value in enumerate(one.values)
    ]
    found += [
        Contribution(point=one.of_bias, layer=one.tap.stage, head=None, value=out.of(one.bias))
        for one in seen
        if one.bias is not None
    ]
    embedding = out.of(first.values[0])
    leading_spaces = LeadingSpaces(runtime.tokenizer, request.tokens)
    leading_spaces.see(logits_V[None], [position])
    return Attributed(
        stop=reports.stop_identity(session),
        position=position,
        layer=through,
        tokens=read,
        logit=logit,
        embedding=embedding,
        constant=out.constant,
        rest=logit - embedding - out.constant - sum(one.value for one in found) - sum(map(_sum, neurons)),
        contributions=tuple(found),
        neurons=neurons,
        notes=(*leading_spaces.notes, *(notes if through > boundary else ())),
    )


def _sum(neurons: NeuronParts) -> float:
    return float(to_tensor(neurons.values).sum())


def _noted(reply: Attributed, dtype: torch.dtype) -> Attributed:
    """Return the reply with a note where its rest exceeds the rounding of the model's dtype."""
    largest = max(map(abs, (reply.embedding, reply.constant, *(one.value for one in reply.contributions))))
    largest = max(largest, *(float(to_tensor(one.values).abs().max()) for one in reply.neurons), 0.0)
    if abs(reply.rest) <= ROUNDED.get(dtype, ROUNDINGS_IN_16_BITS * torch.finfo(dtype).eps) * largest:
        return reply
    note = f"The parts miss the logit by more than rounding ({abs(reply.rest):.1e}): smaller ones say nothing."
    return msgspec.structs.replace(reply, notes=(*reply.notes, note))
