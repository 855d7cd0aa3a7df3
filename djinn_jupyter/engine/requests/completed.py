"""The reply of a job, completed by what its request alone knows."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import msgspec

from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.wire.edges import CircuitsRun, EdgesAttributed
from djinn_jupyter.wire.graphs import GraphMade

Told = TypeVar("Told", EdgesAttributed, CircuitsRun, GraphMade)


def completed(
    steps: Generator[Blocked | None, None, Told], *, notes: tuple[str, ...], **told: object
) -> Generator[Blocked | None, None, Told]:
    """Return the reply of `steps`, with these notes before its own and what else is told."""
    reply: Told = yield from steps
    return msgspec.structs.replace(reply, notes=(*notes, *reply.notes), **told)
