"""Matrices of the model, read by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.positions import Positions, no_ends, spell_positions
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask

if TYPE_CHECKING:
    import numpy as np


def read_weight(
    channel: Channel, name: str, rows: Positions, columns: Positions, *, fold_norm: bool
) -> np.ndarray[Any, Any]:
    """Return a matrix of the model, or the rows and columns of it that are chosen."""
    ends = no_ends(UsageError("Write the rows and columns of a matrix with both ends, as 0:100."))
    chosen = [spell_positions(part, ends) for part in (rows, columns)]
    request = ask.ReadWeight(name=name, rows=chosen[0], columns=chosen[1], fold_norm=fold_norm)
    return to_numpy(ask_for(channel, request).values)
