"""One job: a collection read, a module trained on it, its folder written."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from djinn_jupyter.client.training.jobs import AnyJob, ProbeJob, SaeJob, SteeringJob, TranscoderJob, TunedLensJob
from djinn_jupyter.client.training.provenance import provenance
from djinn_jupyter.client.training.trained import PROVENANCE, VECTOR
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.module_files import folder, saelens
from djinn_jupyter.module_files.writing import safetensors_bytes, write_folder
from djinn_jupyter.training.labelling import labels_of, left_out
from djinn_jupyter.training.probing import train_probe
from djinn_jupyter.training.reporting import Remembered, Report
from djinn_jupyter.training.rows import CollectedRows, rows_of
from djinn_jupyter.training.sae import train_sae, train_transcoder
from djinn_jupyter.training.steering import direction
from djinn_jupyter.training.tuned_lens import train_lens
from djinn_jupyter.wire.arrays import Array

Contents = tuple[dict[str, bytes], dict[str, float]]


def run(job: AnyJob, report: Report) -> None:
    """Train, and write the folder, of a training that the `report` ends with how far it came. Raises UsageError and
    StorageFailed, with nothing written."""
    report = last = Remembered(report)
    torch.set_num_threads(job.threads)
    torch.use_deterministic_algorithms(True)
    collection = Activations(job.collection)
    rows = rows_of(collection, job.site)
    if isinstance(job, TunedLensJob):
        end, out = rows_of(collection, job.last).values_ND, left_out(rows, job.held_out, job.seed)
        tensors, figures = train_lens(rows.values_ND, end, out, job, report)
        files = _declared("tuned_lens", tensors, job.site)
    elif isinstance(job, TranscoderJob):
        made_NO = rows_of(collection, job.written).values_ND
        tensors, figures = train_transcoder(rows.values_ND, made_NO, job, report)
        files = _as_saelens(tensors, job.site, collection.model, job.written)
    else:
        files, figures = _contents(job, rows, collection.model, report)
    by = {"torch": torch.__version__}, torch.backends.cpu.get_cpu_capability()
    far = {"done": last.done, "of": last.of} if last.ended and last.done < last.of else None
    write_folder(Path(job.to), files | {PROVENANCE: provenance(job, collection, figures, *by, interrupted=far)})


def _contents(job: SaeJob | ProbeJob | SteeringJob, rows: CollectedRows, model: str, report: Report) -> Contents:
    if isinstance(job, SaeJob):
        tensors, figures = train_sae(rows.values_ND, job, report)
        return _as_saelens(tensors, job.site, model), figures
    if isinstance(job, ProbeJob):
        tensors, figures = train_probe(rows, job, report)
        return _declared("probe", tensors, job.site), figures
    return _of_steering(rows, job, report)


def _of_steering(rows: CollectedRows, job: SteeringJob, report: Report) -> Contents:
    """Return a probe that reads how far rows are along the direction, and beside it the vector itself."""
    positive_N = labels_of(rows, job.positive).bool()
    found = direction(rows.values_ND, positive_N, job.method, job.penalty, report)
    files = _declared("probe", {"weight": found.weight_1D, "bias": found.bias_1}, job.site)
    projected = rows.values_ND.double() @ found.weight_1D[0] + found.bias_1
    figures = {
        "length": float(found.vector_D.norm()),
        "told_apart": float(((projected > 0.5) == positive_N).double().mean()),
    }
    vector = io.BytesIO()
    np.save(vector, found.vector_D.float().numpy(), allow_pickle=False)
    return files | {VECTOR: vector.getvalue()}, figures


def _declared(kind: str, tensors: Mapping[str, Tensor], site: str) -> dict[str, bytes]:
    form = {"kind": kind, "dtype": "float32", "trained_at": site}
    return {folder.DECLARED: _json(form), folder.TENSORS: _file(tensors)}


def _as_saelens(tensors: Mapping[str, Tensor], site: str, model: str, written: str | None = None) -> dict[str, bytes]:
    width, features = tensors["W_enc"].shape
    places = {"hook_name": site} | ({} if written is None else {"hook_name_out": written})
    form = {
        "architecture": "jumprelu" if written is None else "jumprelu_transcoder",
        "d_in": width,
        "d_sae": features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": written is None,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": places | {"model_name": model},
    }
    if written is not None:
        form["d_out"] = tensors["W_dec"].shape[1]
    return {saelens.CONFIGURATION: _json(form), saelens.WEIGHTS: _file(tensors)}


def _json(declared: Mapping[str, Any]) -> bytes:
    return (json.dumps(declared, indent=1) + "\n").encode()


def _file(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors_bytes({name: _array(tensor) for name, tensor in tensors.items()})


def _array(tensor: Tensor) -> Array:
    values = tensor.detach().to(torch.float32).contiguous().numpy()
    return Array(dtype="float32", shape=values.shape, data=values.astype("<f4", copy=False).tobytes())
