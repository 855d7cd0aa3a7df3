"""`python -m djinn_jupyter.parallel.rank --pipe FD`: the process of one rank of a split model other than rank 0. The
engine starts it; it ends with the engine, however that ends."""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.model.loading.load import LoadedModel, load_model
from djinn_jupyter.engine.model.loading.other_parts import leave_out
from djinn_jupyter.engine.store.identity import identity_of
from djinn_jupyter.engine.system.device import make_current
from djinn_jupyter.engine.system.log import logging_to_standard_error
from djinn_jupyter.parallel import group as orders
from djinn_jupyter.parallel.cutting import SplitPlan, cut
from djinn_jupyter.parallel.follower import Follower, LayerFailed, go_on_and_sum
from djinn_jupyter.parallel.group import RankGroup

log = logging.getLogger(__name__)
LEADER_GONE: Final = (EOFError, BrokenPipeError, ConnectionResetError)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m djinn_jupyter.parallel.rank")
    parser.add_argument("--pipe", type=int, required=True, metavar="FD")
    pipe = Connection(parser.parse_args(arguments).pipe)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all its processes; the engine ends this one
    threading.Thread(target=_end_with_leader, args=(pipe.fileno(),), name="djinn-leader", daemon=True).start()
    try:
        order = orders.next_order(pipe)
        assert isinstance(order, orders.LoadModel)
        with logging_to_standard_error(replace(order.config.log, rank=order.rank)):
            return _ended(order, pipe)
    except LEADER_GONE:
        return 0


def _ended(order: orders.LoadModel, pipe: Connection) -> int:
    """Serve until the end, and return the status of the process."""
    try:
        _serve(order, pipe)
    except LEADER_GONE:
        raise
    except LayerFailed:
        return 1  # the log has it, with its request
    except Exception as error:
        log.exception("Rank %d, process %d, ends", order.rank, os.getpid())
        orders.send(pipe, orders.RankFailed(reason=str(error)))
        return 1
    return 0


def _end_with_leader(pipe: int) -> None:
    """End this process once the other end of the pipe is closed, also inside a collective."""
    closed = select.poll()
    closed.register(pipe, 0)  # a hang-up is always reported
    closed.poll()
    os._exit(0)


def _serve(order: orders.LoadModel, pipe: Connection) -> None:
    loaded, device = load_model(order.config), torch.device(order.device)
    identity = identity_of(loaded.model, device, loaded.quantization)
    leave_out(loaded.model)
    orders.send(pipe, orders.ModelLoaded(identity=msgspec.msgpack.encode(identity)))
    split = orders.next_order(pipe)
    assert isinstance(split, orders.TakePart)
    make_current(device)
    group = _take_part(loaded, order, split, pipe)
    Follower(pipe, group, loaded.model, split, order.rank).follow()


def _take_part(loaded: LoadedModel, order: orders.LoadModel, split: orders.TakePart, pipe: Connection) -> RankGroup:
    """Cut this rank's part of the layers, move it to the device, and join the others."""
    device = torch.device(order.device)
    plan = SplitPlan(layers=split.layers, columns=split.columns, rows=split.rows)

    def total(part: Tensor) -> None:
        go_on_and_sum(pipe, group, part)

    cut(loaded.model, plan, order.rank, order.ranks, total)
    for path in split.layers:
        loaded.model.get_submodule(path).to(device)
    orders.send(pipe, orders.PartTaken())
    group = RankGroup(split.meeting, order.rank, order.ranks, device)
    return group


if __name__ == "__main__":
    raise SystemExit(main())
