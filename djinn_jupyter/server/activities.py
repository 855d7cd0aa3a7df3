"""Notes to engines about the notebooks of their sessions: only changes since the last notes. Sends nothing itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from djinn_jupyter.server.kernels import HOLDER_PREFIX, Kernels
from djinn_jupyter.wire.nouns import Activity, SessionDescription
from djinn_jupyter.wire.requests import Note

GONE = ("dead", "restarting", "autorestarting", "terminating")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReport:
    """The state of a session's notebook as last reported to its engine. `kernel` is the activity of `holder`'s."""

    holder: str | None = None
    kernel: Activity | None = None
    focused: bool = False


class Activities:
    """The reported states of one engine's sessions. None for an unknown kernel's session: it may be another
    server's."""

    def __init__(self) -> None:
        self._told: dict[str, LastReport] = {}

    def notes(self, sessions: Iterable[SessionDescription], kernels: Kernels, focused: Collection[str]) -> list[Note]:
        """Return the notes that bring the engine up to date, and record them as sent."""
        due: list[Note] = []
        present: dict[str, LastReport] = {}
        for session in sessions:
            before = self._told.get(session.name, LastReport())
            now = present[session.name] = _present(session, before, kernels, focused)
            due += (Note(session=session.name, activity=activity) for activity in _news(before, now))
        self._told = present
        return due

    def forget(self, session: str) -> None:
        """Drop the record of a session that the engine has just opened or closed: it knows nothing of its notebook."""
        self._told.pop(session, None)

    def restarted(self, kernel: str) -> list[Note]:
        """Return a `gone` note for each session of a restarted kernel; its next activity is reported anew."""
        lost = [name for name, told in self._told.items() if told.holder == HOLDER_PREFIX + kernel]
        for name in lost:
            self._told[name] = replace(self._told[name], kernel="gone")
        return [Note(session=name, activity="gone") for name in lost]


def _news(before: LastReport, now: LastReport) -> list[Activity]:
    """Return the activities to report. `gone` is repeated after a focus note, which would cancel it."""
    news: list[Activity] = []
    if now.focused != before.focused:
        news.append("focused" if now.focused else "blurred")
    changed = (now.kernel, now.holder) != (before.kernel, before.holder)
    if now.kernel is not None and (changed or (news and now.kernel == "gone")):
        news.append(now.kernel)
    return news


def _present(session: SessionDescription, before: LastReport, kernels: Kernels, focused: Collection[str]) -> LastReport:
    seen = kernels.notebook_of(session) in focused
    kernel = kernels.holding(session)
    if kernel is not None:
        activity: Activity = "gone" if kernel.state in GONE else "busy" if kernel.state == "busy" else "idle"
        return LastReport(holder=session.holder, kernel=activity, focused=seen)
    if session.holder is not None and session.holder == before.holder and before.kernel is not None:
        return LastReport(holder=session.holder, kernel="gone", focused=seen)  # a kernel of this server that has ended
    return LastReport(focused=seen)
