"""Poll the registry and Jupyter's kernels once a second; while a browser is connected, poll the engines and, where that
is quick, the kernels four times a second. Puts the readings into the live picture, and notifies engines of the activity
of their notebooks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from djinn_jupyter.link.registry import Registry
from djinn_jupyter.remote.addresses import Attachments, used_by_this_process
from djinn_jupyter.server.activities import Activities
from djinn_jupyter.server.kernels import Kernels
from djinn_jupyter.server.link import EngineLink
from djinn_jupyter.server.live import LivePicture
from djinn_jupyter.server.messages import LiveEngine, LiveSession
from djinn_jupyter.wire import logs, nouns, requests, texts
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event, EventsMissed, SessionClosed, SessionOpened

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
READ_SECONDS = 0.25
PATIENCE_SECONDS = 0.1  # how long one round waits for an engine; a slower answer counts in the next round
QUICK_SECONDS = 0.01
CLOSE_SECONDS = 5.0


class Monitor:
    """Polls in one event loop, from `start` to `stop`. If `read_kernels` raises, the last reading stays."""

    def __init__(self, picture: LivePicture, *, read_kernels: Callable[[], Awaitable[Kernels]]) -> None:
        self._picture, self._read_kernels = picture, read_kernels
        self._registry, self._attachments = Registry(), Attachments()
        self._links: dict[str, EngineLink] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._activities: dict[str, Activities] = {}
        self._holders: dict[str, dict[str, str | None]] = {}  # the last known ones of the sessions of each engine
        self._gone: dict[str, str] = {}
        self._kernels = Kernels()
        self._kernels_seconds = 0.0
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._changed = True
        self._rounds: asyncio.Task[None] | None = None

    @property
    def links(self) -> tuple[EngineLink, ...]:
        """The links, the oldest engine first."""
        return tuple(sorted(self._links.values(), key=lambda link: link.entry.started))

    def start(self) -> None:
        """Start polling; a second call does nothing."""
        if self._rounds is None:
            self._rounds = asyncio.ensure_future(self._look_around())

    async def stop(self) -> None:
        tasks = [*self._keeping.values(), *filter(None, [self._rounds])]
        for task in tasks:
            task.cancel()
        await asyncio.wait([asyncio.ensure_future(self._close(tasks))], timeout=CLOSE_SECONDS)

    async def ready(self) -> None:
        """Wait until the registry has been read once."""
        self.start()
        await self._looked.wait()

    def find(self, engine: str) -> EngineLink | None:
        return self._links.get(engine)

    def asked_by(self, notebook: str | None, request: requests.Request) -> requests.Request:
        """Return the request as it is asked for the notebook that a window shows, if it shows one."""
        return request if notebook is None else self._kernels.asked_by(notebook, request)

    def hurry(self) -> None:
        """Start the next round now, for a change that engines or windows should learn of at once."""
        self._changed = True
        self._wake.set()

    def kernel_restarted(self, kernel: str) -> None:
        for name, activities in self._activities.items():
            for note in activities.restarted(kernel):
                self._links[name].note(note)

    async def read(self) -> None:
        """Read all engines, send them their notes, and show the readings in the live picture."""
        await asyncio.gather(*(link.read(PATIENCE_SECONDS) for link in self._links.values()))
        for link in self._links.values():
            for note in self._activities[link.id].notes(link.sessions, self._kernels, self._picture.focused):
                link.note(note)
        self._picture.show(
            {link.id: self._described(link) for link in self.links},
            gone=self._gone,
            sampled={link.id: link.take_sampled() for link in self._links.values()},
        )
        self._gone.clear()

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_around(self) -> None:
        loop = asyncio.get_running_loop()
        looked = loop.time() - LOOK_SECONDS
        while True:
            try:
                due = loop.time() - looked >= LOOK_SECONDS
                if due:
                    looked = loop.time()
                    self._look()
                if due or (self._picture.readers and self._kernels_seconds < QUICK_SECONDS):
                    await self._see_kernels()
                if self._changed or self._picture.readers:
                    self._changed = False
                    await self.read()
            except Exception:  # top of the polling task: a failed round is logged, and the next one follows
                log.exception("A round of looking around failed")
            self._looked.set()
            await self._pause(READ_SECONDS if self._picture.readers else LOOK_SECONDS)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):  # wait_for loses a cancellation that coincides with the event
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _look(self) -> None:
        afar = {name: used_by_this_process(entry) for name, entry in self._attachments.look().items()}
        entries = {entry.id: entry for entry in self._registry.look()} | afar
        for name, entry in entries.items():
            if name not in self._links:
                self._add(EngineLink(entry, heard=self._hear))
        for name, link in tuple(self._links.items()):
            ends_itself = link.ready and not link.entry.is_afar  # with its reason
            if name not in entries and not ends_itself:
                self._keeping[name].cancel()

    async def _see_kernels(self) -> None:
        """Read the kernels and time it: local managers take a millisecond; those of a gateway take longer and are
        therefore read only once a second."""
        begun = asyncio.get_running_loop().time()
        kernels = await self._known_kernels()
        self._kernels_seconds = asyncio.get_running_loop().time() - begun
        self._changed = self._changed or kernels != self._kernels
        self._kernels = kernels

    async def _known_kernels(self) -> Kernels:
        try:
            return await self._read_kernels()
        except Exception as error:  # noqa: BLE001  engines are still shown, whatever a server's kernel manager raises
            log.warning("Jupyter's kernels could not be read: %s", error)
            return self._kernels

    def _add(self, link: EngineLink) -> None:
        self._links[link.id] = link
        self._activities[link.id] = Activities()
        self._keeping[link.id] = asyncio.ensure_future(self._keep(link))
        self._changed = True

    async def _keep(self, link: EngineLink) -> None:
        try:
            reason = await link.run()
            log.info("%s", reason)
            self._gone[link.id] = "" if _in_order(link.entry) else reason
        finally:
            del self._links[link.id], self._keeping[link.id], self._activities[link.id]
            self._holders.pop(link.id, None)
            self.hurry()

    def _hear(self, link: EngineLink, event: Event) -> None:
        self._changed = True  # read in the next round: an engine may send more than four events a second
        if isinstance(event, EventsMissed):
            return
        if isinstance(event, SessionOpened | SessionClosed):
            self._activities[link.id].forget(event.session)
        self._picture.event(link.id, event)

    def _described(self, link: EngineLink) -> LiveEngine:
        labels = texts.distinct_labels(session.name for session in link.sessions)
        self._note_holders(link)
        sessions = {one.name: self._session(one, labels[one.name], link) for one in link.sessions}
        return LiveEngine(found=link.found(), statistics=link.statistics, sessions=sessions)

    def _note_holders(self, link: EngineLink) -> None:
        before = self._holders.get(link.id, {})
        now = {one.name: one.holder or before.get(one.name) for one in link.sessions}
        self._holders[link.id] = now

    def _session(self, session: nouns.SessionDescription, label: str, link: EngineLink) -> LiveSession:
        return LiveSession(
            described=session,
            label=label,
            notebook=self._kernels.notebook_of(session),
            kernel=self._kernels.holding(session),
            idle_since=link.read_at - session.idle_seconds,
            closed=self._kernels.has_closed(session, self._holders[link.id][session.name]),
        )


def _in_order(entry: Entry) -> bool:
    return not entry.is_afar and entry.log is not None and logs.ended_in_order(Path(entry.log), entry.pid)
