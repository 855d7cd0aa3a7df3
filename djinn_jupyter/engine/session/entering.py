"""Enter a pass of a session once there is room for its pages and for the tensors it leaves."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.passes.controller import Admit, Outcome, Plan, SavedStates
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session

GENERATOR_BYTES: Final = 5056  # the state of a CPU generator, which counts where the device is the CPU
LOGIT_BYTES: Final = 4  # logits are kept in float32
STATES: Final = 4  # sets of a recurrent family: live, replaced, before the pass, and at a period's end


def entered(
    runtime: Runtime, session: Session, frame: Frame, plan: Plan, cache: PagedCache, saved_states: SavedStates
) -> Generator[Blocked | None, None, Outcome]:
    """Run `Forward.enter` once there is room for its pages and for the tensors it leaves, as `Space.entered` does."""
    runtime = runtime.of(session)
    forward, logits = runtime.forward, len(frame.tokens) if plan.all_logits else 1
    row_bytes = forward.anatomy.hidden_size * max(dtype.itemsize for dtype in forward.anatomy.dtypes)

    def enter(admit: Admit) -> Outcome:
        return forward.enter(frame, plan, cache, saved_states, admit, alone=runtime.giving_way.alone())

    return (
        yield from runtime.space.entered(
            session,
            cache,
            lambda: cache.bytes_wanted(frame.committed, frame.end),
            enter,
            always=_left_by_every_pass(runtime, cache, logits)
            + sum(rule.copies_to_come for rule in session.rules.values()),
            expected=len(frame.tokens) * row_bytes if plan.halts and not plan.bare else 0,
        )
    )


def _left_by_every_pass(runtime: Runtime, cache: PagedCache, positions: int) -> int:
    """Return the bytes of the logits of so many positions and of states, also where a pass stops before it has them."""
    generator = GENERATOR_BYTES if runtime.forward.device.type == "cpu" else 0
    logits = positions * runtime.description.vocab_size * LOGIT_BYTES
    return generator + logits + STATES * max(runtime.forward.geometry.recurrent_state_bytes, cache.recurrent_bytes)
