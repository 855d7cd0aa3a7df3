"""The reply of a job, completed by what its request alone knows."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

import msgspec

from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.methods.circuits.request import CircuitsRun, EdgesAttributed
from djinn_jupyter.methods.graphs.request import GraphMade

Told = TypeVar("Told", EdgesAttributed, CircuitsRun, GraphMade)


def completed(
    steps: Generator[Blocked | None, None, Told],
    *,
    notes: tuple[str, ...],
    made: Callable[[Told], object],
    **told: object,
) -> Generator[Blocked | None, None, Told]:
    """Return the reply of `steps`, with these notes before its own, what else is told, and the recipe of its numbers:
    work that was ended with its parts was made by a smaller request."""
    reply: Told = yield from steps
    return msgspec.structs.replace(reply, notes=(*notes, *reply.notes), made=made(reply), **told)
