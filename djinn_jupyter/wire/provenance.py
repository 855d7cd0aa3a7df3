"""The origin of a result: the model and the machine that computed it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.frozen import Frozen

Words = Annotated[str, Meta(max_length=4096)]


class Provenance(Frozen, frozen=True):
    """The model and the machine that computed a result. Where two are the same but for the model's name and revision,
    the same request gives the same bits, as far as each cell is computed alone."""

    model: Words  # by which the engine was started
    revision: Words | None
    architecture: Words
    configuration: Words  # a digest
    weights: Words  # a digest, as checkpoints have it
    dtype: Words
    attention: Words  # of the engine; a session may have another
    device: Words  # its kind
    processor: Words  # the device's name; of a CPU with the instructions that torch uses on it
    threads: int
    torch: Words
    transformers: Words
    djinn: Words
    tensor_parallel: int = 1  # ranks among which sums are split
