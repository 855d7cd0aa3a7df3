"""The origin of a result: the model and the machine that computed it."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from djinn_jupyter.errors import FingerprintsDiffer
from djinn_jupyter.wire.base import Frozen

Words = Annotated[str, Meta(max_length=4096)]


class Provenance(Frozen, frozen=True):
    """The model and the machine that computed a result. Where two differ only in the model's name and revision, the
    same request gives the same bits, for cells that are computed alone."""

    model: Words  # by which the engine was started
    revision: Words | None
    architecture: Words
    configuration: Words  # a digest
    weights: Words  # a digest, as in checkpoints
    dtype: Words
    attention: Words  # of the engine; a session may have another
    device: Words  # its kind
    processor: Words  # the device's name; of a CPU with the instructions that torch uses on it
    threads: int
    torch: Words
    transformers: Words
    djinn: Words
    tensor_parallel: int = 1  # ranks among which sums are split
    quantization: Words | UnsetType = UNSET  # what was done to the weights at load, and by which library


# The fingerprint of an engine: the part of its provenance that determines the bits of its sessions.

DIGESTS: Final = ("configuration", "weights")
FINGERPRINT: Final = (
    "architecture", *DIGESTS, "dtype", "attention", "device", "processor", "threads", "tensor_parallel",
    "quantization", "torch", "transformers", "djinn",
)  # fmt: skip


def differences(one: Provenance, other: Provenance) -> list[tuple[str, str, str]]:
    """Return the differences of two fingerprints: (name, of the one, of the other). A model's name is not part of
    them."""
    named = ((name, *(str(getattr(of, name) or "none") for of in (one, other))) for name in FINGERPRINT)
    return [(name, first, second) for name, first, second in named if first != second]


def require_equal(here: Provenance, there: Provenance) -> None:
    """Raise FingerprintsDiffer, with the differences, unless a session of an engine here continues bit for bit in one
    there."""
    found = differences(here, there)
    if not found:
        return
    if any(name in ("architecture", *DIGESTS) for name, _, _ in found):
        raise FingerprintsDiffer(
            f"The engines have different models ({here.model}, {here.architecture}, and {there.model}, "
            f"{there.architecture}): a session moves only between engines of the same one."
        )
    said = ", ".join(f"{name.replace('_', ' ')} ({first} here, {second} there)" for name, first, second in found)
    raise FingerprintsDiffer(
        f"The two engines differ in {said}, and so in their last bits: a session moves only between equal ones."
    )
