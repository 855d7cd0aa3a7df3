"""The side of the other ranks: run each layer as rank 0 does, with this rank's part of the matrices. It knows no
sessions, plans or pages: what happens at a tap is told by rank 0, and so is whether the layer goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.model.hooks.gates import tensors_in
from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.system.log import LoggedRequest, WorkingOn, told
from djinn_jupyter.parallel import group as orders
from djinn_jupyter.parallel.group import RankGroup
from djinn_jupyter.parallel.leader import numbers_in, unpack
from djinn_jupyter.parallel.rows import RankRows
from djinn_jupyter.wire.sites import parse_site

log = logging.getLogger(__name__)


class LayerFailed(RuntimeError):
    """A layer has failed on this rank, as its log shows."""


@contextmanager
def layer_told(layer: int, rank: int, asked: LoggedRequest | None) -> Iterator[None]:
    """Tell of a layer that runs within, never of a value. Raises LayerFailed for an error, unless rank 0 was lost."""
    with WorkingOn(asked):
        try:
            yield
        except (EOFError, OSError):
            raise
        except Exception as error:
            fields = told("pass.failed", layer=layer, error_type=type(error).__name__)
            log.exception("The pass failed in layer %d on rank %d, which ends", layer, rank, extra=fields)
            raise LayerFailed from error
        if asked is not None and log.isEnabledFor(logging.DEBUG):
            log.debug("Layer %d has run on rank %d", layer, rank, extra=told("pass.layer", layer=layer))


class LayerLeft(BaseException):
    """Rank 0 has left the layer, and so does this rank."""


class OutOfStep(RuntimeError):
    """Rank 0 does something else than this rank expects: they are not at the same place in the layer."""


class Follower:
    """Runs layers on orders until the pipe closes."""

    def __init__(self, pipe: Connection, group: RankGroup, model: nn.Module, split: orders.TakePart, rank: int) -> None:
        self._pipe, self._group, self._model, self._rank = pipe, group, model, rank
        self._asked: LoggedRequest | None = None
        self._layers = [model.get_submodule(path) for path in split.layers]
        self._rows = RankRows(group, self.expect)
        self._tensors: dict[int, Tensor] = {}

    @torch.inference_mode()
    def follow(self) -> None:
        """Run layers. Raises EOFError once rank 0 has gone, and LayerFailed."""
        while True:
            order = orders.next_order(self._pipe)
            if isinstance(order, orders.RunLayer):
                with layer_told(order.layer, self._rank, self._asked):
                    self._run(order)
            elif isinstance(order, orders.WorkOn):
                self._asked = order.asked
            elif not isinstance(order, orders.LeaveLayer):  # after its last collective this rank has finished the layer
                raise OutOfStep(f"{type(order).__name__} came between two layers.")

    def expect(self, kind: Any) -> Any:
        return expect(self._pipe, kind)

    def _run(self, order: orders.RunLayer) -> None:
        for form in order.sent:
            self._tensors[form.number] = self._group.receive(form)
        self._tensors = {number: self._tensors[number] for number in numbers_in(order.arguments)}
        args, kwargs = unpack(order.arguments, self._tensors, self._rows)
        try:
            with self._catching(order):
                returned = self._layers[order.layer](*args, **kwargs)
        except LayerLeft:
            return
        self._tensors[order.output] = next(tensor for _, tensor in tensors_in(returned))

    @contextmanager
    def _catching(self, order: orders.RunLayer) -> Iterator[None]:
        places = {self._tap(order.layer, place): number for number, place in enumerate(order.places)}

        def met(tap: Tap, raw: Tensor) -> Tensor | None:
            return self._met(places[tap], order.places[places[tap]].along, raw)

        with catch(places, met):
            yield

    def _tap(self, layer: int, place: orders.TapPlace) -> Tap:
        return Tap(
            site=parse_site(place.site),
            kind=place.kind,  # type: ignore[arg-type]  # of the leader's own tap
            stage=layer,
            axes="",
            layout=PositionLayout(position=0, batch=None),
            module=self._model.get_submodule(place.module),
            within=self._layers[layer] if place.shared else None,
            key=place.key,
            ordinal=place.ordinal,
            in_place=place.in_place,
        )

    def _met(self, number: int, along: int | None, raw: Tensor) -> Tensor | None:
        met: orders.MeetTap = self.expect(orders.MeetTap)
        if met.number != number:
            raise OutOfStep(f"TapPlace {met.number} was met where this rank is at {number}.")
        if along is not None:
            self._group.give(raw)
        answer: orders.KeepValue | orders.ReplaceValue = self.expect(orders.KeepValue | orders.ReplaceValue)
        if isinstance(answer, orders.KeepValue):
            return None
        changed = self._group.receive(answer.form)
        return changed if along is None else self._group.own(changed, along).contiguous()


def go_on_and_sum(pipe: Connection, group: RankGroup, part: Tensor) -> None:
    """Take part in the sum of a matrix that is split by rows, when rank 0 reaches it."""
    expect(pipe, orders.GoOn)
    group.sum(part)


def expect(pipe: Connection, kind: Any) -> Any:
    """Wait for an order of this kind. Raises LayerLeft where the layer is left instead."""
    order: orders.FromLeader = orders.next_order(pipe)
    if isinstance(order, orders.LeaveLayer):
        raise LayerLeft
    if not isinstance(order, kind):
        raise OutOfStep(f"{type(order).__name__} came where {kind} was expected.")
    return order
