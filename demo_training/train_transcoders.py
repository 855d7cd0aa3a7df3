"""Trains the transcoders that ship with the demo model: `python -m demo_training.train_transcoders`, a few minutes on
one core.

It collects what every MLP reads and makes over training documents, has one transcoder of each trained by one call, and
writes all of them as one folder of circuit-tracer. The same seed has the same bits on one machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save

import djinn_jupyter as dj
from demo_training import grammar as g
from djinn_jupyter.demo import TRANSCODERS_PATH
from djinn_jupyter.modules.files import circuit_tracer, saelens
from djinn_jupyter.modules.files.files import require_free, write_folder
from djinn_jupyter.modules.training.process import TrainedModule

DOCUMENTS_SEED: Final = 7
HOOKS: Final = "feature_input_hook: mlp.hook_in\nfeature_output_hook: mlp.hook_out\n"
PROVENANCE: Final = "provenance.json"


def collected(engine: dj.RemoteEngine, documents: int, folder: Path) -> dj.Activations:
    """Return what the MLPs read and make over training documents, at all positions."""
    texts = [document.text for document in islice(g.training_documents(DOCUMENTS_SEED), documents)]
    layers = range(engine.description.layers)
    return engine.collect(texts, [f"{point}.{n}" for n in layers for point in ("mlp_in", "mlp_out")], to=folder)


def in_one_folder(modules: list[TrainedModule]) -> dict[str, bytes]:
    """Return the files of circuit-tracer: a file of tensors for each layer, the points, and how each was trained."""
    files = {circuit_tracer.CONFIGURATION: HOOKS.encode()}
    for layer, module in enumerate(modules):
        tensors = load_file(module.folder / saelens.WEIGHTS)
        files[f"layer_{layer}.safetensors"] = save(as_circuit_tracer(tensors))
    files[PROVENANCE] = (json.dumps([_provenance(one) for one in modules], indent=1) + "\n").encode()
    return files


def as_circuit_tracer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of SAELens's jumprelu_transcoder under circuit-tracer's names."""
    return {
        "W_enc": tensors["W_enc"].T.contiguous(),
        "b_enc": tensors["b_enc"],
        "W_dec": tensors["W_dec"],
        "b_dec": tensors["b_dec"],
        circuit_tracer.THRESHOLD: tensors["threshold"],
    }


def _provenance(module: TrainedModule) -> dict[str, Any]:
    """Return how a module was trained, without the folder it was trained in."""
    found = json.loads((module.folder / PROVENANCE).read_text())
    return {name: found[name] for name in ("training", "collection", "versions", "figures")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=TRANSCODERS_PATH)
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument("--features", type=int, default=160)
    parser.add_argument("--active", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1200)
    arguments = parser.parse_args()
    require_free(arguments.to)
    engine = dj.load("demo")
    with tempfile.TemporaryDirectory() as place:
        acts, modules = collected(engine, arguments.documents, Path(place) / "acts"), []
        for layer in range(engine.description.layers):
            one = dj.train_transcoder(
                acts,
                to=Path(place) / f"{layer}",
                site=f"mlp_in.{layer}",
                features=arguments.features,
                active=arguments.active,
                steps=arguments.steps,
            )
            print(layer, {name: round(value, 4) for name, value in one.figures.items()}, flush=True)
            modules.append(one)
        write_folder(arguments.to, in_one_folder(modules))


if __name__ == "__main__":
    main()
