"""The difference of two means as a steering vector, found in this process by numpy."""

from __future__ import annotations

import io
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from djinn_jupyter.client.interrupts import interruptible
from djinn_jupyter.client.training.jobs import SteeringJob
from djinn_jupyter.client.training.provenance import provenance
from djinn_jupyter.client.training.site_rows import labels_of, rows_of
from djinn_jupyter.client.training.trained import PROVENANCE, VECTOR
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.module_files import folder
from djinn_jupyter.module_files.writing import safetensors_bytes, write_folder
from djinn_jupyter.wire.arrays import Array


def write_difference(job: SteeringJob) -> None:
    """Write the folder of a vector from the mean of the other rows to that of the positive, as a training of another
    method does. Raises UsageError where the means are the same, StorageFailed and WorkInterrupted, with nothing
    written."""
    with interruptible("The training", done="nothing was written"):
        collection = Activations(job.collection)
        rows = rows_of(collection, job.site)
        positive_N = labels_of(rows.prompts_N, job.positive).astype(bool)
        x_ND = rows.values_ND.astype(np.float64)
        low_D = x_ND[~positive_N].mean(0)
        vector_D = x_ND[positive_N].mean(0) - low_D
        length = float(np.linalg.norm(vector_D))
        if not length > 0:
            raise UsageError("Positive and other rows have the same mean along this direction, so it steers nowhere.")
        weight_D = vector_D / length**2
        bias = -(weight_D @ low_D)
        figures = {"length": length, "told_apart": float(((x_ND @ weight_D + bias > 0.5) == positive_N).mean())}
        tensors = {"weight": _array(weight_D[None]), "bias": _array(bias[None])}
        form = {"kind": "probe", "dtype": "float32", "trained_at": job.site}
        vector = io.BytesIO()
        np.save(vector, vector_D.astype("<f4"), allow_pickle=False)
        files = {
            folder.DECLARED: (json.dumps(form, indent=1) + "\n").encode(),
            folder.TENSORS: safetensors_bytes(tensors),
            VECTOR: vector.getvalue(),
            PROVENANCE: provenance(job, collection, figures, {"numpy": np.__version__}, platform.machine()),
        }
        write_folder(Path(job.to), files)


def _array(values: Any) -> Array:
    found = np.asarray(values, dtype="<f4")
    return Array(dtype="float32", shape=found.shape, data=found.tobytes())
