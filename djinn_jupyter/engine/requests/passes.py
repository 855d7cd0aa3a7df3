"""Read a stopped pass at many sites at once: in one rerun up to the stop, and one that finishes it on the side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.interventions import edits
from djinn_jupyter.engine.interventions.site_value import SiteValue
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.requests.answer_sizes import Room, require_answerable
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import queries, reports, stop_edits
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.engine.system.arrays import handed_over
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.replies import PassRead
from djinn_jupyter.wire.sites import Site


@dataclass(slots=True, kw_only=True)
class Seen:
    """Keeps what one site has in a pass, on the host, within the `room` of one answer."""

    site: Site
    tap: Tap
    room: Room
    value: Tensor | None = None

    def mark(self) -> Callable[[], None]:
        """Return a no-op: a value seen again replaces the earlier one."""
        return lambda: None

    def observe(self, site_value: SiteValue) -> None:
        part = edits.take(site_value.value.detach(), None, self.site.selector)
        if self.value is None:
            self.room.take(part.numel() * part.element_size())
        self.value = part.to("cpu", copy=True)


class PassRequests:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @handles(ask.ReadPass)
    def read_pass(self, request: ask.ReadPass, session: Session, holder: Holder) -> Steps[PassRead]:
        frame, runtime, room = _frame_read(session, request), self._runtime.of(session), Room()
        places = {text: runtime.site(text) for text in dict.fromkeys(request.sites)}
        seen = {text: Seen(site=site, tap=runtime.resolve(site), room=room) for text, site in places.items()}
        if request.logits:
            require_answerable(len(frame.positions), runtime.description.vocab_size)
        below = [one for one in seen.values() if queries.may_be_reached(one.tap, frame)]
        if below:
            yield from queries.as_it_went(runtime, session, frame, below)
        logits_TV = None
        if request.ahead or request.logits:
            ahead = [one for one in seen.values() if one.value is None]
            logits_TV = yield from queries.as_it_would_go_on(runtime, session, frame, ahead)
        met = {text: one.value for text, one in seen.items() if one.value is not None}
        return PassRead(
            stop=reports.standing(session),
            sites=tuple(met),
            values=tuple(handed_over(value) for value in met.values()),
            logits=None if logits_TV is None or not request.logits else handed_over(logits_TV.float()),
        )


def _frame_read(session: Session, request: ask.ReadPass) -> Frame:
    """Return the frame of the stop with the value that the request puts there, which stays out of the session. Raises
    InvalidEdit."""
    frame = queries.stopped_frame(session)
    if request.value is None:
        return frame
    assert frame.tap is not None
    stop_edits.require_editable(frame.tap)
    site, number = reports.site_of(session), len(session.edits) + 1
    return stop_edits.make(frame, Set(value=request.value), site, request.positions, number=number).frame
