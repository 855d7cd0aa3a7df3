"""The origin of a result: which model computed it, and on what."""

from __future__ import annotations

import torch
import transformers

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.persistence.identity import ModelIdentity
from djinn_jupyter.machine import processor
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.provenance import Provenance


def origin(identity: ModelIdentity, model: ModelDescription) -> Provenance:
    """Return the provenance of what this process computes with this model."""
    return Provenance(
        model=model.name,
        revision=model.revision,
        architecture=identity.architecture,
        configuration=identity.configuration,
        weights=identity.weights,
        dtype=identity.dtype,
        attention=identity.attention,
        device=identity.device,
        processor=_processor(torch.device(model.device)),
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        transformers=transformers.__version__,
        djinn=__version__,
    )


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}"
