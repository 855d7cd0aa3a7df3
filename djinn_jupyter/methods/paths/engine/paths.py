"""Path patching (Wang et al. 2022, Goldowsky-Dill et al. 2023), one path after the other, each alone.

Two passes a path. In the first the sender has another value, the outputs of attention and MLP after it are those of the
unedited line, and the receivers' values are noted. In the second these values stand at the receivers, and nothing else
is held.
"""

from __future__ import annotations

from collections.abc import Generator

from torch import Tensor

from djinn_jupyter.engine.forward.frame import Frame, Override
from djinn_jupyter.engine.forward.pass_controller import Completed
from djinn_jupyter.engine.forward.plan import Target
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.methods.common.engine.lines import LinesAlone, Recorded, RunLine
from djinn_jupyter.methods.paths.engine.receivers import Received, Receivers
from djinn_jupyter.wire.sites import Site


class PathsAlone:
    """Runs paths to `receivers` in the pages of the sweep's session, a pass at a time."""

    def __init__(self, alone: LinesAlone, receivers: Receivers) -> None:
        self.alone, self.receivers = alone, receivers

    def logits(self, line: RunLine, sender: Tap, raw: Tensor) -> Generator[Blocked | None, None, Tensor]:
        """Return the logits of the line where the receivers alone see `raw` at `sender`."""
        received = yield from self._received(line, sender, raw)
        if not received:
            return line.logits_V
        first = min(one.receiver.boundary for one in received)
        hidden = self.alone.hidden(line, first)
        for one in received:
            if one.receiver.tap.boundary == first:
                hidden = one.receiver.put(hidden, one.met)
        frame = self._from(line, first, hidden, ())
        outcome = yield from self.alone.passed(frame, self.alone.plan(rules=received))
        assert isinstance(outcome, Completed)
        return outcome.logits_1V[0].clone()

    def _received(self, line: RunLine, sender: Tap, raw: Tensor) -> Generator[Blocked | None, None, list[Received]]:
        """Return the values of the receivers that the sender reaches, with all else as in the line."""
        reached = self.receivers.reached_from(sender)
        if not reached:
            return []
        last = max(one.last_layer for one in reached)
        end = self.alone.runtime.resolve(Site(point="resid_post", layer=last))
        frozen = (block for layer in range(last + 1) for block in self.receivers.frozen_after(sender, layer))
        overrides = [Override(tap=block, raw=line.raw[block.site]) for block in frozen]
        first, hidden = sender.boundary, raw
        if first is None:
            first, hidden = sender.stage, self.alone.hidden(line, sender.stage)
            overrides.append(Override(tap=sender, raw=raw))
        met = {one.tap.site: Recorded(tap=one.tap) for one in reached}
        frame = self._from(line, first, hidden, tuple(overrides))
        plan = self.alone.plan(observers=met.values(), halts=[Target(tap=end, step=0)])
        yield from self.alone.passed(frame, plan)
        return [Received(receiver=one, met=value) for one in reached if (value := met[one.tap.site].raw) is not None]

    def _from(self, line: RunLine, boundary: int, hidden: Tensor, overrides: tuple[Override, ...]) -> Frame:
        if self.alone.from_the_start:
            entry = Override(tap=self.alone.borders()[boundary], raw=hidden)
            return Frame(tokens=line.tokens, committed=0, step=0, overrides=(*overrides, entry))
        return Frame(tokens=line.tokens, committed=0, step=0, boundary=boundary, hidden=hidden, overrides=overrides)
