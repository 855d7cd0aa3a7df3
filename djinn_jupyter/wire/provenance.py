"""The origin of a result: the model and the machine that computed it."""

from __future__ import annotations

from djinn_jupyter.wire.frozen import Frozen


class Provenance(Frozen, frozen=True):
    """The model and the machine that computed a result. Where two are the same but for the model's name and revision,
    the same request gives the same bits, as far as each cell is computed alone."""

    model: str  # by which the engine was started
    revision: str | None
    architecture: str
    configuration: str  # a digest
    weights: str  # a digest, as checkpoints have it
    dtype: str
    attention: str  # of the engine; a session may have another
    device: str  # its kind
    processor: str  # the device's name; of a CPU with the instructions that torch uses on it
    threads: int
    torch: str
    transformers: str
    djinn: str
    tensor_parallel: int = 1  # ranks among which sums are split
