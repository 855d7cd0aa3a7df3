"""Spell residency: the place of a session's bytes, the cost of a move, and the contents of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from djinn_jupyter.widgets.markup import table
from djinn_jupyter.widgets.spelling import amount, columns, duration, plural
from djinn_jupyter.widgets.theme import card, mono, part
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.nouns import CheckpointDescription, Residency, SessionDescription, TierStatistics, Transfer
from djinn_jupyter.wire.replies import CheckpointSaved

PLACES = {
    "resident": "on device",
    "storing": "leaving",
    "host": "on host",
    "loading": "coming back",
    "disk": "on disk",
}
CAUSES = {
    "asked": "as asked",
    "pressure": "to make room",
    "idleness": "because it stood idle",
    "prefetch": "ahead of its use",
    "needed": "when it was needed",
    "write_through": "as a copy",
}


def transfer_line(transfer: Transfer) -> str:
    """Spell a transfer: `restored 1.6 GiB from host in 34 ms`, `moved 1.6 GiB to disk in 1.2 s`, or that nothing had to
    be copied."""
    if not transfer.bytes_moved:
        out = transfer.direction == "out"
        return f"{'moved to' if out else 'restored from'} {transfer.tier}; nothing had to be copied, " + (
            f"the {transfer.tier} has it" if out else "the device has it"
        )
    size, took = amount(transfer.bytes_moved), duration(transfer.seconds)
    if transfer.direction == "in":
        return f"restored {size} from {transfer.tier} in {took}"
    return f"moved {size} to {transfer.tier} in {took}"


def swapped_line(name: str, transfer: Transfer | None, *, out: bool) -> str:
    """Return the output of `%djinn_swap`, also for a session that had nothing to move."""
    if transfer is not None:
        return f"{label(name)}: {transfer_line(transfer)}"
    return f"{label(name)}: nothing to move, {'it holds no bytes on the device' if out else 'it is on the device'}"


def rest_line(name: str, seconds: float, *, leaves: bool) -> str:
    """Return the output of `%djinn_rest`."""
    meanwhile = "it leaves the device until then" if leaves else "it stays on the device unless others need its room"
    return f"{label(name)}: wanted again in {duration(seconds)}; {meanwhile}"


def whereabouts(session: SessionDescription) -> Residency:
    """Return the tier of a session's bytes. Pages shared with a fork go to disk with the fork, even those of a session
    on the host."""
    on_disk_alone = session.residency == "host" and not session.host_bytes and session.disk_bytes
    return "disk" if on_disk_alone else session.residency


def bytes_where(session: SessionDescription) -> int:
    """Return the bytes of a session in the tier that `whereabouts` names."""
    place = whereabouts(session)
    if place in ("resident", "storing"):
        return session.device_bytes
    return session.disk_bytes if place == "disk" else session.host_bytes


def copies(session: SessionDescription) -> str:
    """Spell a session's bytes in other tiers, `1.2 MiB on host` for a resident one, and its bytes without a copy."""
    held = [
        f"{amount(size)} on {tier}"
        for tier, size in (("host", session.host_bytes), ("disk", session.disk_bytes))
        if size and whereabouts(session) != tier
    ]
    return ", ".join([*held, f"{amount(session.dirty_bytes)} without a copy"] if session.dirty_bytes else held)


def tier_line(tier: TierStatistics) -> str:
    """Spell the accounting of a tier: bytes in use, the limit, and the bytes moved in and back."""
    used = f"{amount(tier.bytes_used)} of {amount(tier.bytes_limit)} in use, {plural(tier.pages, 'page')}"
    return f"{used}; {amount(tier.bytes_out)} came, {amount(tier.bytes_in)} went back"


def saved_line(saved: CheckpointSaved) -> str:
    """Return the output of `%djinn_checkpoint`."""
    kept = saved.checkpoint
    return f"checkpoint {kept.name} saved: {_moment(kept)}, {amount(kept.bytes_stored)}"


def checkpoints_view(kept: Sequence[CheckpointDescription], left_out: int = 0) -> View:
    """List the checkpoint files, the newest first."""
    if not kept:
        return View(plain="no checkpoints", html=card(title="Checkpoints", beside="no checkpoints"))
    newest = sorted(kept, key=lambda c: (-c.saved, c.name))
    rows = [[c.name, label(c.session), _moment(c), c.dtype, amount(c.bytes_stored), _when(c)] for c in newest]
    head = ["checkpoint", "of session", "stands at", "dtype", "size", "saved"]
    made = [[mono(name), *rest] for name, *rest in rows]
    more = f"and {left_out:,} older ones, which can be restored by their names" if left_out else ""
    return View(
        plain=columns(rows, head) + (more and f"\n{more}"),
        html=card(part(table(head, made, numeric=(4,))), title="Checkpoints", beside=more),
    )


def _moment(kept: CheckpointDescription) -> str:
    stop = "" if kept.stopped_at is None else f", stopped at {kept.stopped_at}, step {kept.step}"
    return f"{plural(kept.tokens, 'token')}{stop}"


def _when(kept: CheckpointDescription) -> str:
    return datetime.fromtimestamp(kept.saved).strftime("%Y-%m-%d %H:%M")
