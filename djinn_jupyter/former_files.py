"""Files of versions before this one: those of 79ba2cba are read as what is written today, older ones are refused. No
other module knows a former format.

What 79ba2cba wrote otherwise: shards of collections had no digests, and a steering vector by the difference of means
was found by a training. Its journals, checkpoints, results and modules are in the formats of today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from djinn_jupyter import shard_digests

FORMER: Final = "79ba2cba"
_OLDER_FORMAT: Final = 1  # of journals and checkpoints, in versions before it


def digests_in(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a shard's note that has the digests. One of 79ba2cba has none of its tensors."""
    if shard_digests.WRITTEN in note:
        found: dict[str, Any] = note[shard_digests.WRITTEN]
        return found
    return {"tensors": None, shard_digests.NOTE: shard_digests.of_note(note)}


def was_trained(provenance: Mapping[str, Any]) -> bool:
    """Return whether a training found a steering vector: today one of another method than the difference of means."""
    return "numpy" not in provenance["versions"]


def refusal(number: int, newest: int) -> str:
    """Say what to do about a checkpoint or a journal's file in format `number`; the `newest` is read here."""
    if number > newest:
        return f"It has format {number}, which a newer Djinn wrote: upgrade Djinn to read it."
    if number == _OLDER_FORMAT:
        return (
            f"It has format {number}, of a version before {FORMER}: load it with Djinn {FORMER}, keep it there with "
            "%djinn_checkpoint NAME, and restore that here with %djinn_restore NAME."
        )
    return f"It has format {number}, which no version of Djinn wrote: it is damaged or not one of ours."
