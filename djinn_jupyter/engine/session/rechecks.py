"""One row of a shared pass is computed again alone: was it what it is alone? Its run keeps what was computed so."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from torch import Tensor

from djinn_jupyter.engine.passes.controller import Completed, Yielded, make_plan
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.rounding import difference, equal_but_for_rounding
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.seats import Seat


def drawn(seats: Sequence[Seat]) -> Seat:
    """Draw the seat that is computed again alone, by the first one's seed and length."""
    session = seats[0].session
    assert session.generation is not None
    return random.Random(session.generation.sampler.sampling.seed + session.cache.length).choice(seats)


def rechecked(
    forward: Forward, seat: Seat, shared_V: Tensor, should_yield: Callable[[], bool]
) -> Generator[Blocked | None, None, bool]:
    """Run the pass of a drawn seat alone and note by how much its shared row differed. Return False where that is more
    than rounding. A seat that is out of date by then has no outcome. Raises SlabFull and OutOfDeviceMemory."""
    session, plan = seat.session, make_plan(yields=should_yield)
    frame = session.frame
    assert frame is not None
    session.cache.reserve(frame.committed, frame.end, once=True)  # its rows go on in columns
    while seat.open:
        outcome = forward.enter(frame, plan, session.cache, session.saved_states, lambda kept: None)
        if isinstance(outcome, Completed):
            seat.outcome = replace(outcome, layers_run=forward.layers)
            seat.difference = float(difference(shared_V, outcome.logits_1V[0]).abs().max())
            return equal_but_for_rounding(shared_V[None], outcome.logits_1V, forward.model.dtype)
        assert isinstance(outcome, Yielded)
        frame = outcome.frame
        yield None
    return True
