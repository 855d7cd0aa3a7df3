"""Direct logit attribution at a stop: the contribution of each module's output to a logit. Changes nothing."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.forward.epilogue import Readout, on_host, readout
from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.forward.pass_controller import Halted
from djinn_jupyter.engine.forward.plan import Target
from djinn_jupyter.engine.forward.weight_reader import WeightReader
from djinn_jupyter.engine.interventions import edits
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.inspection import token_id
from djinn_jupyter.engine.requests.methods import MethodParts
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import queries, reports
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Steps
from djinn_jupyter.engine.session.unspaced import Unspaced
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.engine.system.to_home import to_home
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.direct.engine.attribution_recipes import attribution_recipe
from djinn_jupyter.methods.direct.engine.row_observers import RowObserver, require_whole, watched
from djinn_jupyter.methods.direct.request import Attribute, Attributed
from djinn_jupyter.wire.readings import Contribution, NeuronParts
from djinn_jupyter.wire.sites import Site

ROUNDED: Final = {torch.float32: 1e-4, torch.float64: 1e-4}  # of the largest part
ROUNDINGS_IN_16_BITS: Final = 8  # so many of the dtype's own


def handlers(parts: MethodParts) -> tuple[AttributionRequests, ...]:
    """Return what handles the requests of this method."""
    return (AttributionRequests(parts),)


class AttributionRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._weights = parts, WeightReader(parts.runtime.forward)

    @handles(Attribute)
    def attribute(self, request: Attribute, session: Session, holder: Holder) -> Steps[Attributed]:
        runtime = self._parts.runtime.of(session)
        frame = queries.stopped_frame(session)
        if frame.hidden is None or frame.boundary == 0:
            raise UnknownSite("No layer has run at this stop; step to a layer's output to attribute a logit to layers.")
        if frame.hidden.dim() != 3:
            raise UnknownSite("The residual of this model is several streams at once, so no logit is a sum of parts.")
        tokens = [token_id(runtime, token) for token in request.tokens]
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
    inside a layer is entered at the layer's beginning, at `entry`: its modules before the stop are observed too."""
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
    unspaced = Unspaced(runtime.tokenizer, request.tokens)
    unspaced.see(logits_V[None], [position])
    return Attributed(
        stop=reports.standing(session),
        position=position,
        layer=through,
        tokens=read,
        logit=logit,
        embedding=embedding,
        constant=out.constant,
        rest=logit - embedding - out.constant - sum(one.value for one in found) - sum(map(_sum, neurons)),
        contributions=tuple(found),
        neurons=neurons,
        notes=(*unspaced.notes, *(notes if through > boundary else ())),
    )


def _sum(neurons: NeuronParts) -> float:
    return float(to_tensor(neurons.values).sum())


def _noted(reply: Attributed, dtype: torch.dtype) -> Attributed:
    """Return the reply with a note where its rest is more than the rounding of the dtype that the model computes in."""
    largest = max(map(abs, (reply.embedding, reply.constant, *(one.value for one in reply.contributions))))
    largest = max(largest, *(float(to_tensor(one.values).abs().max()) for one in reply.neurons), 0.0)
    if abs(reply.rest) <= ROUNDED.get(dtype, ROUNDINGS_IN_16_BITS * torch.finfo(dtype).eps) * largest:
        return reply
    note = f"The parts miss the logit by more than rounding ({abs(reply.rest):.1e}): smaller ones say nothing."
    return msgspec.structs.replace(reply, notes=(*reply.notes, note))
