"""An engine in memory that answers every request with the wire's own replies; the real client speaks with it.

It has eight layers, knows one text, stops at its first breakpoint and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

import djinn_jupyter
from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import (
    DjinnError,
    IllegalMove,
    InvalidCondition,
    SessionHeld,
    SessionsWouldSuffer,
    UnknownBreakpoint,
    UnknownCheckpoint,
    UnknownSession,
    UnknownSite,
    UsageError,
)
from djinn_jupyter.wire import nouns, protocol, replies, requests
from djinn_jupyter.wire.running import MetricsRead, ReadMetrics
from djinn_jupyter.wire.sites import parse_site
from tests.client.direct import DirectChannel
from tests.magics.methods import (
    Adapted,
    Added,
    Attributing,
    Collecting,
    Edged,
    Headed,
    Looked,
    Moved,
    Owned,
    SweepJob,
    Switched,
)
from tests.widgets import samples

NEW = (" Paris", ".", " The")


class EngineDouble(Looked, Switched, Attributing, Owned, SweepJob, Collecting, Headed, Added, Adapted, Edged, Moved):
    """One engine; a client speaks through `channel`."""

    def __init__(self) -> None:
        self.sessions: dict[str, nouns.SessionDescription] = {}
        self.stops: dict[str, replies.Paused | None] = {}
        self.kept: dict[str, tuple[nouns.SessionDescription, replies.Paused | None]] = {}
        self.interrupt_runs = False
        self.numbered = 1
        self.dead = False
        welcome = replies.Welcome(
            version="1", model=samples.model(), attached=(), methods=tuple(protocol.method_digests().items())
        )
        self.channel = DirectChannel(welcome, self.send, holder="kernel-1")

    def send(self, request: requests.Request, answer: Callable[[replies.Reply], None]) -> None:
        try:
            reply = self._reply(request)
        except DjinnError as error:
            reply = replies.Failed(code=error.code, message=str(error))
        answer(reply)

    def _reply(self, request: Any) -> replies.Reply:
        if self.dead:
            return replies.Failed(code="EngineUnavailable", message="The engine of demo has ended; load it again.")
        name = type(request).__name__
        opening = isinstance(request, requests.Open | requests.RestoreCheckpoint | requests.TakeIn)
        if isinstance(request, requests.SessionRequest) and not opening and request.session not in self.sessions:
            raise UnknownSession(f"There is no session {request.session!r}.")
        if isinstance(request, requests.OwnerRequest):
            self.require_own(request)
        return getattr(self, f"_{name.lower()}")(request)

    # ------------------------------------------------------------------------------------------------ engine

    def _liststatistics(self, _: Any) -> replies.Reply:
        return replies.Statistics(statistics=samples.statistics())

    _readstatistics = _liststatistics

    def _listsessions(self, _: Any) -> replies.Reply:
        return replies.Sessions(sessions=tuple(self.sessions.values()))

    def _listmodules(self, _: Any) -> replies.Reply:
        path = nouns.ModuleDescription(path="model.layers.2.mlp", kind="LlamaMLP", layer=2, called=1)
        return replies.Modules(modules=(path,))

    def _shutdown(self, request: requests.Shutdown) -> replies.Reply:
        others = [n for n, s in self.sessions.items() if s.holder not in (None, "kernel-1")]
        if others and not request.force:
            raise SessionsWouldSuffer(f"Session {others[0]} of another kernel would end; add --force.")
        return replies.ShuttingDown(sessions_lost=tuple(self.sessions))

    # ----------------------------------------------------------------------------------------------- session

    def _open(self, request: requests.Open) -> replies.Reply:
        there = self.sessions.get(request.session)
        if there is not None and there.holder not in (None, "kernel-1") and not (request.join or request.force):
            raise SessionHeld(f"Session {request.session!r} is held by another kernel; add --join to enter it.")
        if there is None or request.fresh:
            self.sessions[request.session] = samples.session(request.session)
            self.stops[request.session] = None
        return replies.Opened(session=self.sessions[request.session], created=there is None)

    def _describe(self, request: Any) -> replies.Reply:
        return replies.Described(session=self.sessions[request.session])

    def _detach(self, request: Any) -> replies.Reply:
        self._change(request.session, holder=None)
        return replies.Detached()

    def _close(self, request: Any) -> replies.Reply:
        del self.sessions[request.session]
        return replies.Closed(pages_freed=1)

    def _fork(self, request: requests.Fork) -> replies.Reply:
        self.sessions[request.name] = msgspec.structs.replace(self.sessions[request.session], name=request.name)
        stop = self.stops[request.session]
        self.stops[request.name] = None if stop is None else msgspec.structs.replace(stop, session=request.name)
        return replies.Opened(session=self.sessions[request.name], created=True)

    # ---------------------------------------------------------------------------------------- memory and files

    def _note(self, _: Any) -> replies.Reply:
        return replies.Noted()

    def _swapout(self, request: requests.SwapOut) -> replies.Reply:
        return self._moved(request.session, request.tier, samples.transfer(direction="out", tier=request.tier))

    def _swapin(self, request: requests.SwapIn) -> replies.Reply:
        there = self.sessions[request.session]
        if there.residency == "resident":
            return replies.Swapped(session=there, transfer=None)
        return self._moved(request.session, "resident", samples.transfer(tier=there.residency))

    def _moved(self, name: str, place: str, transfer: nouns.Transfer) -> replies.Reply:
        self._change(name, residency=place, last_transfer=transfer, host_bytes=3 * 2**20)
        self.channel.publish(replies.SessionSwapped(session=name, transfer=transfer))
        return replies.Swapped(session=self.sessions[name], transfer=transfer)

    def _rest(self, request: requests.Rest) -> replies.Reply:
        if request.expected_seconds >= 60.0:
            self._change(request.session, residency="host")
        return self._describe(request)

    def _sleep(self, _: Any) -> replies.Reply:
        return replies.WeightsMoved(weights=samples.weights(residency="asleep", bytes_on_device=0), seconds=0.02)

    def _wake(self, _: Any) -> replies.Reply:
        return replies.WeightsMoved(weights=samples.weights(), seconds=0.0)

    def _savecheckpoint(self, request: requests.SaveCheckpoint) -> replies.Reply:
        if request.name in self.kept and not request.replace:
            raise UsageError(f"There is a checkpoint {request.name!r} already; replace it or choose another name.")
        session = self.sessions[request.session]
        self.kept[request.name] = (session, self.stops[request.session])
        made = samples.checkpoint(
            name=request.name, session=session.name, tokens=session.tokens, stopped_at=session.stopped_at, step=0
        )
        return replies.CheckpointSaved(checkpoint=made, path=f"{request.name}.djinn")

    def _restorecheckpoint(self, request: requests.RestoreCheckpoint) -> replies.Reply:
        if request.name not in self.kept:
            raise UnknownCheckpoint(f"There is no checkpoint {request.name!r}.")
        created = request.session not in self.sessions
        if not created and not request.replace:
            raise UsageError(f"There is a session {request.session!r} already.")
        session, stop = self.kept[request.name]
        self.sessions[request.session] = msgspec.structs.replace(session, name=request.session)
        self.stops[request.session] = None if stop is None else msgspec.structs.replace(stop, session=request.session)
        return replies.Opened(session=self.sessions[request.session], created=created)

    def _listcheckpoints(self, _: Any) -> replies.Reply:
        return replies.Checkpoints(checkpoints=tuple(samples.checkpoint(name=name) for name in self.kept))

    def _dropcheckpoint(self, request: requests.DropCheckpoint) -> replies.Reply:
        if self.kept.pop(request.name, None) is None:
            raise UnknownCheckpoint(f"There is no checkpoint {request.name!r}.")
        return replies.Cleared(count=1)

    def _acceptrecomputed(self, request: Any) -> replies.Reply:
        self._change(request.session, exactness="exact")
        return replies.Described(session=self.sessions[request.session])

    # ----------------------------------------------------------------------------------------------- running

    def _come_back(self, name: str) -> None:
        """Bring back a session before it moves."""
        there = self.sessions[name].residency
        if there != "resident":
            self._moved(name, "resident", samples.transfer(tier=there, cause="needed"))

    def _run(self, request: requests.Run) -> replies.Reply:
        points = self.sessions[request.session].breakpoints
        if points and not request.free:
            return self._stop(request.session, points[0].site, breakpoint=points[0])
        return self._finish(request.session)

    def _resume(self, request: requests.Resume) -> replies.Reply:
        self._present(request.session)
        self._come_back(request.session)
        return self._finish(request.session)

    def _step(self, request: requests.Step) -> replies.Reply:
        layer = self._present(request.session).layer + request.count
        return self._stop(request.session, f"resid_post.{layer - 1}", layer=layer, reason="step", breakpoint=None)

    def _back(self, request: requests.Back) -> replies.Reply:
        return self._stop(request.session, "resid_post.1", layer=2, reason="back", breakpoint=None, history_length=2)

    def _stop(self, name: str, site: str, **changes: Any) -> replies.Reply:
        layer = changes.pop("layer", (parse_site(site).layer or 0) + 1)
        reason = "interrupt" if self.interrupt_runs else changes.pop("reason", "breakpoint")
        stop = samples.paused(site, layer=layer, session=name, reason=reason, stop=self._stand(name), **changes)
        self.stops[name] = stop
        self._change(name, state="paused", stopped_at=site, step=0, tokens=5, stop=stop.stop)
        self.channel.publish(replies.SessionPaused(session=name, stop=stop.stop, site=site, step=0, reason=reason))
        return stop

    def _finish(self, name: str) -> replies.Reply:
        self.stops[name] = None
        self._change(name, state="idle", stopped_at=None, step=None, tokens=8, stop=self._stand(name))
        for step, text in enumerate(NEW, start=1):
            said = {"step": step, "token": 100 + step, "text": text, "log_probability": -0.1}
            self.channel.publish(replies.TokenSampled(session=name, **said))
        done = samples.finished(session=name, stop=self.sessions[name].stop, rules=self.sessions[name].rules)
        self.channel.publish(replies.SessionFinished(session=name, stop=done.stop, reason=done.reason, new_tokens=3))
        return done

    def _readhistory(self, request: Any) -> replies.Reply:
        stop = nouns.StopDescription(
            index=0, site="resid_post.4", step=0, position=4, reason="breakpoint", edited=False
        )
        return replies.History(stops=(stop,), present=0)

    def _readlogits(self, request: Any) -> replies.Reply:
        return replies.Logits(logits=from_numpy(samples.values(16)), stop=self.sessions[request.session].stop)

    def _readmetrics(self, request: ReadMetrics) -> replies.Reply:
        """The number of a row, and less than nothing. The sessions beside rows have finished no pass."""
        if any("(" not in metric for metric in request.metrics):
            raise InvalidCondition("A metric reads logits.")
        row = request.session.rpartition("/")[2]
        if not row.isdecimal():
            raise UsageError("There are no logits.")
        return MetricsRead(values=tuple(float(row) - 2 * number for number, _ in enumerate(request.metrics)))

    def _stand(self, name: str) -> nouns.StopIdentity:
        """The number of the next stop: the double's sessions share one row of them."""
        self.numbered += 1
        return nouns.StopIdentity(session=name, number=self.numbered, edition=self.numbered)

    def _pause(self, request: Any) -> replies.Reply:
        return replies.Pausing(was_running=True)

    def _readstop(self, request: Any) -> replies.Reply:
        return self._present(request.session)

    def _present(self, name: str) -> replies.Paused:
        stop = self.stops[name]
        if stop is None:
            raise IllegalMove(f"Session {name!r} is not stopped; run a prompt with a breakpoint first.")
        return stop

    # ----------------------------------------------------------------------------------- breakpoints and rules

    def _setbreakpoint(self, request: requests.SetBreakpoint) -> replies.Reply:
        site = self._site(request.site)
        points = self.sessions[request.session].breakpoints
        for point in points:
            if (point.site, point.when) == (site, request.when):
                return replies.BreakpointSet(breakpoint=point, existed=True)
        made = samples.described_breakpoint(
            number=len(points) + 1, site=site, when=request.when, once=request.once, hits=0
        )
        self._change(request.session, breakpoints=(*points, made))
        return replies.BreakpointSet(breakpoint=made, existed=False)

    def _enablebreakpoint(self, request: requests.EnableBreakpoint) -> replies.Reply:
        points = self.sessions[request.session].breakpoints
        found = [one for one in points if one.number == request.number]
        if not found:
            raise UnknownBreakpoint(f"There is no breakpoint {request.number}.")
        switched = msgspec.structs.replace(found[0], enabled=request.enabled)
        self._change(request.session, breakpoints=tuple(switched if one is found[0] else one for one in points))
        return replies.BreakpointSet(breakpoint=switched, existed=True)

    def _pause(self, request: requests.Pause) -> replies.Reply:
        return replies.Pausing(was_running=self.sessions[request.session].state == "running")

    def _clearbreakpoints(self, request: requests.ClearBreakpoints) -> replies.Reply:
        points = self.sessions[request.session].breakpoints
        kept = () if request.sites is None else tuple(p for p in points if p.site not in request.sites)
        self._change(request.session, breakpoints=kept)
        return replies.Cleared(count=len(points) - len(kept))

    def _watch(self, request: requests.Watch) -> replies.Reply:
        name = None if request.direction is None else request.direction.name
        watch = samples.watch(site=self._site(request.site), passes=0, bytes_held=0, direction=name)
        self._change(request.session, watches=(watch,))
        return replies.Watching(watch=watch)

    def _unwatch(self, request: requests.Unwatch) -> replies.Reply:
        count = len(self.sessions[request.session].watches)
        self._change(request.session, watches=())
        return replies.Cleared(count=count)

    def _readwatch(self, request: requests.ReadWatch) -> replies.Reply:
        name = request.direction
        recorded = [samples.values(n, samples.WIDTH, seed=n) for n in (5, 1, 1)]
        values = tuple(from_numpy(value if name is None else value[:, 0]) for value in recorded)
        positions = ((0, 1, 2, 3, 4), (5,), (6,))
        return replies.WatchRead(
            watch=samples.watch(site=request.site, direction=name),
            axes="T D" if name is None else "T",
            values=values,
            positions=positions,
            runs=(1, 2, 2),
        )

    # ------------------------------------------------------------------------------------- looking and changing

    def _applyedit(self, request: requests.ApplyEdit) -> replies.Reply:
        stop = self._present(request.session)
        self.edits = [*getattr(self, "edits", []), request]
        self.stops[request.session] = msgspec.structs.replace(stop, edits=("an edit",))
        positions = tuple(stop.positions[p] if p < 0 else p for p in request.positions or stop.positions)
        kind = type(request.edit).__name__.lower()
        return samples_edited(request.site or stop.site, kind, positions)

    def _revertedits(self, request: Any) -> replies.Reply:
        stop = msgspec.structs.replace(self._present(request.session), edits=())
        self.stops[request.session] = stop
        return stop

    def _measureeffect(self, request: Any) -> replies.Reply:
        stop = self._present(request.session)
        return replies.Effect(
            stop=stop.stop,
            effect=samples.effect(),
            site=stop.site,
            edits=stop.edits,
            influences=stop.influences,
        )

    # ------------------------------------------------------------------------------------------------ private

    def _site(self, spelling: str) -> str:
        site = parse_site(spelling)
        if site.layer is not None and site.layer >= samples.LAYERS:
            raise UnknownSite(f"There is no layer {site.layer}: this model has layers 0 to {samples.LAYERS - 1}.")
        return str(site)

    def _change(self, name: str, **changes: Any) -> None:
        self.sessions[name] = msgspec.structs.replace(self.sessions[name], **changes)


def samples_edited(site: str, kind: str, positions: tuple[int, ...]) -> replies.Reply:
    count = len(positions) * samples.WIDTH
    return samples.edited(
        site=site, edit=kind, positions=positions, shape=(len(positions), samples.WIDTH), entries_changed=count
    )


def client_double(engine: EngineDouble) -> Any:
    """`djinn_jupyter` as the magics see it, with `load` and `engines` replaced."""
    loaded: list[dict[str, Any]] = []

    def load(model: str, *, progress: Callable[[str], None], each_second: Any = None, **options: Any) -> RemoteEngine:
        if model != "demo":
            raise djinn_jupyter.errors.ModelNotFound(f"There is no model {model!r}: no folder, no cached hub name.")
        loaded.append(options)
        progress("reading the weights")
        engine.dead = False
        return RemoteEngine(engine.channel)

    edits = "scale add set_to zero clamp project_out norm_match orthogonal projection_cap patch_from".split()
    names = (*edits, "Interrupted", "Paused", "Finished")
    return SimpleNamespace(
        load=load, loaded=loaded, engines=lambda: (), **{name: getattr(djinn_jupyter, name) for name in names}
    )
