"""Ownership of sessions: which notebook a session belongs to, and the refusal of what only that notebook may do.

One rule for every client. A session belongs to the notebook of the kernel that has it open, or to a process without a
notebook that has it open; one that an engine recovered belongs to the notebook that it is named after, until that opens
it. A session that no client has open, and that was not recovered, has no owner. Knows no requests."""

from __future__ import annotations

from typing import Protocol

from djinn_jupyter.wire.names import NOTEBOOK, notebook_shown
from djinn_jupyter.wire.texts import in_quotes, shown


class Owned(Protocol):
    """A session, or the description of one: its holder, None when detached, and the notebook that it belongs to."""

    @property
    def holder(self) -> str | None: ...
    @property
    def notebook(self) -> str | None: ...


class HeldSession(Owned, Protocol):
    """A session that also knows the notebook of its holder, which may have entered a session of another notebook."""

    @property
    def holder_notebook(self) -> str | None: ...


def is_anothers(session: Owned, holder: str, notebook: str | None) -> bool:
    """Return whether it belongs to another than the kernel or process `holder`, which speaks for that notebook."""
    if session.notebook is not None:
        return session.notebook != notebook
    return session.holder not in (None, holder)


def whose(session: HeldSession) -> str:
    """Say whose it is: a notebook's, named with its folder, or that of a kernel or process without one; where another
    than the owner has it open, both."""
    said = []
    if session.notebook is not None and session.notebook != session.holder_notebook:
        said.append(f"belongs to the notebook {notebook_shown(session.notebook)}")
    if session.holder_notebook is not None:
        said.append(f"is open in the notebook {notebook_shown(session.holder_notebook)}")
    elif session.holder is not None:
        said.append(f"is open in another kernel ({shown(session.holder)})")
    return " and ".join(said)


def refusal(session: HeldSession, label: str, deed: str) -> str:
    """Return the sentence that refuses `deed` to others; `label` is the session's name as it is shown."""
    return (
        f"Session {in_quotes(label)} {whose(session)}; to {deed} all the same, add --force "
        "(in Python force=True), or work on a fork of it (%djinn_fork)."
    )


def named_notebook(name: str) -> str | None:
    """Return the notebook that a session is named after, if any."""
    return name if name.endswith(NOTEBOOK) else None
