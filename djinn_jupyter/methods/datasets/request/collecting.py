"""Collections: activations of many prompts, written to shards, files that are read by mapping them into memory.

An engine writes a shard into a folder of its own machine, or hands it over to a client, which writes it on its own.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.checking import Checked
from djinn_jupyter.wire.event_base import EventBase
from djinn_jupyter.wire.limits import Positions, SomeTokens, Spelling, Text
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import R, SessionRequest

StoredDtype = Literal["float32", "bfloat16", "float16"]
MOST_PROMPTS = 65_536


def shard_name(shard: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{shard:05d}.safetensors"


class Collected(ReplyBase):
    """The shard is whole: on the disk at `path`, or in `content` the bytes of its file, or, without either, with the
    client, which has it already. `bytes_stored` are those of the file, None of the client's. `existed`: it was there
    already, and how it was computed stands in it. `mode` is how it was computed now; the prompts numbered `rechecked`
    were computed again alone, and `largest_difference` is what they differed by, None where each was computed alone
    anyway."""

    shard: int
    path: str | None
    prompts: int
    bytes_stored: int | None
    existed: bool
    mode: Mode
    rechecked: tuple[int, ...]
    largest_difference: float | None
    notes: tuple[str, ...] = ()
    content: Array | None = None


class CollectFields(SessionRequest[R], Generic[R]):
    """The fields of a collection, and of the question whether one would begin."""

    shard: Annotated[int, Meta(ge=0, le=99_999)]
    first: Annotated[int, Meta(ge=0, le=2**53)]
    last: bool
    prompts: Annotated[tuple[SomeTokens, ...], Meta(min_length=1, max_length=MOST_PROMPTS)]
    sites: Annotated[tuple[Spelling, ...], Meta(min_length=1, max_length=4096)]
    positions: Positions | None = None
    dtype: StoredDtype | None = None
    mode: Mode = "fast"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    folder: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    there: Text | None = None

    @property
    def reserved(self) -> str | None:
        if self.folder is None:
            return None
        return (
            "A folder on the engine's machine is for its user alone: without one the shards of a collection are "
            "handed over, and written where the client is."
        )


class Collect(CollectFields[Collected], changes=False, wakes_weights=True, whole_layers=True):
    """Compute the values at `sites` of some prompts, for shard `shard` of a collection. It is written into `folder`, a
    full path on the engine's machine; without one the reply has the content of its file, and `there` is the note of the
    one that the client has already, without what computed it. A person with a key gives no folder. The first of the
    prompts is number `first` of the collection, and `last` says that no shard follows. `positions` are those kept of
    each prompt, negative ones from its end; None keeps all. `dtype` None stores values as they are computed. `fast`
    runs many prompts in a pass and some, chosen by `seed`, again alone; `exact` runs each alone. A shard that is there
    already, of the same prompts, is not computed again. The session itself must be empty; closing it ends the request,
    and whole shards stay."""


class CheckCollect(CollectFields[Checked], changes=False, wakes_weights=True, whole_layers=True):
    """Refuse what a Collect of the same fields would be refused for before it computes: also a folder that the engine
    cannot write, or that has another collection. Nothing is begun and nothing written."""


class CollectionProgressed(EventBase):
    """`done` of the `total` prompts of a shard are computed."""

    done: int
    total: int
