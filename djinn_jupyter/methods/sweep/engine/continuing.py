"""A sweep that goes on from the finished cells of one that was cut short. Which sweep it is a digest says, of all that
its values follow from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import msgspec

from djinn_jupyter.engine.interventions.metric import Values
from djinn_jupyter.engine.persistence.identity import ModelIdentity
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.request import Continued, Sweep
from djinn_jupyter.wire.adapters import AdapterIdentity
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.module_form import ModuleIdentity
from djinn_jupyter.wire.nouns import ModelDescription

ANY_SESSION = "sweep"


def recipe_of(
    meant: Sweep,
    model: ModelDescription,
    identity: ModelIdentity,
    attention: str | None,
    adapter: AdapterIdentity | None,
    modules: Sequence[ModuleIdentity],
) -> str:
    """Return the digest of a request that has the tokens of its lines, whichever session computes it. Weights in one
    folder may have been trained on meanwhile: that the name does not tell, and the model's identity does."""
    meant = msgspec.structs.replace(meant, session=ANY_SESSION)
    of = (model.name, model.revision, identity, model.device, attention or model.attention)
    tuned = () if adapter is None else (adapter.digest,)
    added = tuple((one.name, one.at, one.digest, one.error_term) for one in modules)
    return hashlib.sha256(msgspec.msgpack.encode((meant, (*of, *tuned, *added)), enc_hook=_bytes_of)).hexdigest()


def _bytes_of(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Return what tells an edit's array from others."""
    if isinstance(value, Array):
        return value.dtype, value.shape, bytes(value.data)
    raise NotImplementedError(f"{type(value)} is in no sweep")


def finished_before(continued: Continued | None, recipe: str, shape: Sequence[int], metrics: int) -> dict[int, Values]:
    """Return the values of the cells that are finished, by number. Raises UsageError where they are of another
    sweep."""
    if continued is None:
        return {}
    if continued.recipe != recipe:
        raise UsageError(
            "The grid to go on from is of another sweep: its lines, model or arguments are others. Give those that it "
            "was made with, or leave the grid out."
        )
    numbers, values = continued.cells, continued.values
    fits = len(numbers) == len(values) <= math.prod(shape) and all(len(of_cell) == metrics for of_cell in values)
    if not fits or not all(0 <= number < math.prod(shape) for number in numbers):
        raise UsageError("The grid to go on from has cells that this sweep has not; leave it out.")
    return {number: of_cell for number, of_cell in zip(numbers, values, strict=True)}  # noqa: C416  gives way to others
