"""Watches, which record a site at every pass: their requests and replies."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.circumstances import Circumstances, FedTokens
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.limits import Name, Spelling
from djinn_jupyter.wire.nouns import WatchDescription
from djinn_jupyter.wire.reply_base import Cleared, ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest


class Direction(Frozen, frozen=True):
    """A `vector` as wide as the watched site; a session's watches of one site tell their directions apart by `name`."""

    name: Name
    vector: Array


class Unwatch(SessionRequest[Cleared], shared="write", browser="asks", while_running=True):
    """`site` None ends all watches; `direction` is the name of one."""

    site: Spelling | None = None
    direction: Name | None = None


class Watching(ReplyBase):
    watch: WatchDescription


class Watch(SessionRequest[Watching], shared="write", browser="asks", while_running=True):
    """Record a site over all runs from now on: its value, or the component of its value along a `direction`. `fresh`
    forgets what was recorded so far."""

    site: Spelling
    byte_cap: Annotated[int, Meta(ge=1)] = 256 * 2**20
    fresh: bool = False
    direction: Direction | None = None


class WatchedLine(Frozen, frozen=True):
    """The line of a run, as far as it was fed when it was read or left, and the passes that it was fed in."""

    run: int
    tokens: tuple[int, ...]
    passes: tuple[FedTokens, ...]


class WatchRecipe(Frozen, frozen=True):
    """All that makes the recorded passes of a watch again: the lines of their runs, and the `direction`."""

    lines: tuple[WatchedLine, ...]
    direction: Direction | None
    made: Circumstances


class WatchRead(ReplyBase):
    """All recorded passes of a site, one value a pass, each with the absolute positions it covers and the run that it
    belongs to: the session's first prompt is run 1. `made` is what makes them again; None where nothing does, for the
    reason `unmade`."""

    watch: WatchDescription
    axes: str
    values: tuple[Array, ...]
    positions: tuple[tuple[int, ...], ...]
    runs: tuple[int, ...]
    made: WatchRecipe | None = None
    unmade: str = ""


def spell_watch(site: str, direction: str | None) -> str:
    """Spell what is recorded: `resid_post.4`, or `resid_post.4 along gender`."""
    return site if direction is None else f"{site} along {direction}"


class ReadWatch(SessionRequest[WatchRead], shared="read", browser="asks", resent="anew", while_running=True):
    """`direction` is the name of one; None reads the watch of the value."""

    site: Spelling
    direction: Name | None = None
