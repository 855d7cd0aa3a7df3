"""Identity of a model: where two engines have the same, a session of one continues bit for bit in the other."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import torch
from msgspec import UNSET, UnsetType
from torch import Tensor, nn
from transformers import PreTrainedModel

from djinn_jupyter.engine.memory.weights.host_weights import plain_parts
from djinn_jupyter.engine.store.records import raw_pieces
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.wire.base import Frozen

SAMPLED_CHUNKS: Final = 16
CHUNK_BYTES: Final = 4096
_NOT_THE_MODEL: Final = {
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "_attn_implementation",
    "use_cache",
}


class ModelIdentity(Frozen, frozen=True):
    """`configuration` and `weights` are digests. The digest of the weights covers every tensor's name, shape and dtype
    and 16 x 4 KiB of its bytes (all bytes of smaller ones): it distinguishes two models that differ in a training step,
    but may miss a single changed number in a large matrix. Sums are split among `tensor_parallel` ranks.
    `quantization`: what was done to the weights at load, and by which library."""

    architecture: str
    configuration: str
    weights: str
    dtype: str
    attention: str
    device: str
    tensor_parallel: int = 1
    quantization: str | UnsetType = UNSET  # of plain weights none is encoded, so that their recipes keep their digests


def identity_of(model: PreTrainedModel, device: torch.device, quantization: str | None = None) -> ModelIdentity:
    """Compute the identity of the model in memory; copies about 64 KiB of each tensor to the host."""
    return ModelIdentity(
        architecture=type(model).__name__,
        configuration=_configuration_digest(model),
        weights=_weights_digest(model),
        dtype=str(model.dtype).removeprefix("torch."),
        attention=str(model.config._attn_implementation),
        device=device.type,
        quantization=quantization or UNSET,
    )


def check_identity(saved: ModelIdentity, here: ModelIdentity) -> None:
    """Raise CheckpointRefused, with difference and remedy, unless a session saved there continues here bit for bit."""
    if saved.architecture != here.architecture:
        raise CheckpointRefused(f"It is of a {saved.architecture}, and this engine serves a {here.architecture}.")
    if saved.quantization != here.quantization:
        theirs, ours = (said or "not quantized" for said in (saved.quantization, here.quantization))
        raise CheckpointRefused(f"Its model's weights are {theirs}, and this engine's {ours}: load that to restore it.")
    if saved.configuration != here.configuration or (saved.weights != here.weights and saved.dtype == here.dtype):
        what = "configuration differs" if saved.configuration != here.configuration else "weights differ"
        raise CheckpointRefused(f"It is of another {saved.architecture}: the {what} from this engine's.")
    for name in ("dtype", "attention", "device", "tensor_parallel"):
        theirs, ours = getattr(saved, name), getattr(here, name)
        if theirs != ours:
            raise CheckpointRefused(
                f"It was saved with {name.replace('_', ' ')} {theirs}, and this engine runs with {ours}: load the "
                f"model with --{name.replace('_', '-')} {theirs} to restore it."
            )


def _configuration_digest(model: PreTrainedModel) -> str:
    text = json.dumps(_of_the_model(model.config.to_dict()), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _of_the_model(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without those about how a model is loaded, also in the configurations of its parts."""
    return {
        str(name): _of_the_model(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in _NOT_THE_MODEL
    }


@torch.no_grad()
def _weights_digest(model: nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):  # parameters, and the buffers that are saved with a model
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        for part in plain_parts(tensor):
            for piece in raw_pieces(_sampled(part)):
                digest.update(piece)
    return digest.hexdigest()


def _sampled(tensor: Tensor) -> Tensor:
    """Return chunks spread evenly over the tensor; all of a small one."""
    flat = tensor.detach().reshape(-1)
    chunk = CHUNK_BYTES // tensor.element_size()
    if flat.numel() <= SAMPLED_CHUNKS * chunk:
        return flat
    stride = flat.numel() // SAMPLED_CHUNKS
    return flat[: SAMPLED_CHUNKS * stride].view(SAMPLED_CHUNKS, stride)[:, :chunk]
