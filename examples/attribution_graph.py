"""An attribution graph of the demo model, through transcoders of its MLPs that are trained here.

python examples/attribution_graph.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import djinn_jupyter as dj
from djinn_jupyter import demo

PROMPTS = 400
LINE = "The capital of France is"


def train(engine: dj.RemoteEngine, folder: Path) -> None:
    """Train a transcoder of each MLP on some documents of the demo model's language, and add it."""
    documents = json.loads(demo.DOCUMENTS_PATH.read_text(encoding="utf-8"))["ids"][:PROMPTS]
    layers = range(engine.description.layers)
    sites = [f"{point}.{layer}" for layer in layers for point in ("mlp_in", "mlp_out")]
    acts = engine.collect(documents, sites, to=folder / "acts")
    for layer in layers:
        made = dj.train_transcoder(
            acts, to=folder / f"tc_{layer}", site=f"mlp_in.{layer}", features=256, active=12, steps=200, batch=512
        )
        engine.add_module("tc", made.folder)
        print(f"layer {layer}: {100 * made.figures['explained_variance']:.0f} % of what its MLP makes is explained")


def main() -> None:
    engine = dj.load("demo")
    with tempfile.TemporaryDirectory() as place:
        train(engine, Path(place))
        graph = dj.attribution_graph(engine, LINE, "logit(' Paris') - logit(' Rome')", module="tc")
    print(graph)
    source, target, _ = graph.top(1)[0]
    print(f"The edge of most influence leads from {source} to {target}.")
    engine.remove_module("tc")
    print("The engine keeps running for the next script or notebook; `djinn stop` ends it.")


if __name__ == "__main__":
    main()
