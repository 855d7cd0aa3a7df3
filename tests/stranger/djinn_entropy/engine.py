"""The stopped pass runs once more to its stop, on the side; the attention [T, H, K] of each layer is seen meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from djinn_entropy.request import EntropyRead, ReadEntropy
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.requests.recipes import way_to_stop
from djinn_jupyter.engine.session import queries
from djinn_jupyter.engine.session.residence import Steps
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UnknownSite


@dataclass(slots=True)
class SeenAttention:
    tap: Tap
    entropy_H: torch.Tensor | None = None  # at the last position

    def mark(self) -> Callable[[], None]:
        return lambda: None  # a pattern that is seen again replaces the earlier one

    def observe(self, seen: SiteValue) -> None:
        self.entropy_H = torch.special.entr(seen.value[-1].double()).sum(-1).cpu()


@dataclass(slots=True)
class EntropyRequests:
    parts: MethodParts

    @handles(ReadEntropy)
    def read_entropy(self, request: ReadEntropy, session: Session, holder: object) -> Steps[EntropyRead]:
        runtime, frame = self.parts.runtime.of(session), queries.stopped_frame(session)
        taps = [runtime.forward.anatomy.taps["pattern", layer] for layer in range(runtime.forward.layers)]
        seen = [SeenAttention(tap) for tap in taps if isinstance(tap, Tap) and queries.may_be_reached(tap, frame)]
        yield from queries.as_it_went(runtime, session, frame, seen)
        found = {one.tap.stage: one.entropy_H for one in seen if one.entropy_H is not None}
        if not found:
            raise UnknownSite("No layer with attention patterns has run at this stop: step behind one.")
        way = way_to_stop(session)
        return EntropyRead(
            layers=tuple(found),
            entropy=to_array(torch.nn.utils.rnn.pad_sequence([*found.values()], True, torch.nan)),
            line=way.line,
            passes=way.passes,
            site=str(way.tap.site),
            made=None if way.unmade else self.parts.circumstances(session, taps=(way.tap, *way.taps)),
            unmade=way.unmade,
        )


def handlers(parts: MethodParts) -> tuple[EntropyRequests]:
    return (EntropyRequests(parts),)
