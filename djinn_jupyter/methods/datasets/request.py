"""Collections: activations of many prompts, written to shards, files that are read by memory mapping.

An engine writes a shard into a folder of its own machine, or sends it to a client, which writes it on its own.
"""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal

from msgspec import Meta

from djinn_jupyter.wire import arrays, base, greeting, looks
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.request_base import OwnName, Positions, R, SessionRequest, SomeTokens, Spelling, Text

StoredDtype = Literal["float32", "bfloat16", "float16"]
MOST_PROMPTS = 65_536
STAYS: Final = "Shards that are whole stay, and collecting again goes on after them."


def shard_name(shard: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{shard:05d}.safetensors"


class Collected(base.ReplyBase):
    """The shard is complete: on the disk at `path`, or in `content` the bytes of its file, or, without either, with the
    client, which has it already. `bytes_stored` is the size of the file, None of the client's. `existed`: it was there
    already, and records how it was computed. `mode` is the mode now. The prompts numbered `rechecked` were computed
    again alone, and `largest_difference` is their difference, None where each was computed alone anyway."""

    shard: int
    path: str | None
    prompts: int
    bytes_stored: int | None
    existed: bool
    mode: Mode
    rechecked: tuple[int, ...]
    largest_difference: float | None
    notes: tuple[str, ...] = ()
    content: arrays.Array | None = None


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
    full path on the engine's machine. Without one the reply has the content of its file, and `there` is the note of the
    shard that the client has already, without its circumstances. A person with a key gives no folder. The first of the
    prompts is number `first` of the collection, and `last` means that no shard follows. `positions` are the positions
    to keep of each prompt, negative ones from its end; None keeps all. `dtype` None stores values as computed. `fast`
    runs many prompts in a pass and some, chosen by `seed`, again alone; `exact` runs each alone. An existing shard of
    the same prompts is not computed again. The session itself must be empty; closing it ends the request, and complete
    shards stay."""


class CheckCollect(CollectFields[greeting.Checked], changes=False, wakes_weights=True, whole_layers=True):
    """Refuse what a Collect of the same fields would be refused for before it computes, including a folder that the
    engine cannot write, or that has another collection. Nothing is begun or written."""


class CollectionProgressed(base.EventBase):
    """`done` of the `total` prompts of a shard are computed."""

    done: int
    total: int


# Scores of prompts: the loss of each token, and the logits of all positions.

ScoredLine = SomeTokens | OwnName


class Scored(base.ReplyBase):
    """`tokens` of each prompt. `values`, fp32, of all prompts one after the other: the negative log-likelihood of each
    token except the first, or logits [positions, vocabulary]. `largest_difference` is the largest difference between
    losses computed together and alone, for the recomputed ones; None where each prompt was computed alone, as `mode`
    then shows, for the reasons in `notes`. `seed` is the request's, and `made` what else the values follow from."""

    tokens: tuple[tuple[int, ...], ...]
    values: arrays.Array
    made: looks.Circumstances
    seed: int = 0
    mode: Mode = "exact"
    largest_difference: float | None = None
    notes: tuple[str, ...] = ()


class Score(SessionRequest[Scored], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Run each prompt in a pass of its own and return the `loss` of its tokens, or the `logits` of its positions. A
    prompt is its tokens, or the name of a session: the tokens that it has fed. The steering rules of session `rules_of`
    apply. The session itself must be empty; closing it ends the request. `first` is the number of the first prompt, for
    errors. `fast` runs prompts together, for their loss, and some, chosen by `seed`, again alone."""

    prompts: Annotated[tuple[ScoredLine, ...], Meta(min_length=1, max_length=65_536)]
    what: Literal["loss", "logits"] = "loss"
    rules_of: OwnName | None = None
    first: Annotated[int, Meta(ge=0, le=2**53)] = 0
    mode: Mode = "exact"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
