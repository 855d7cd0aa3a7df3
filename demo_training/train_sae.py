"""Trains the SAE that ships with the demo model: `python -m demo_training.train_sae`, about two minutes on one core.

It collects the residuals of layer 4 over training documents, and trains by one call. The same seed has the same bits on
one machine. `python -m demo_training.name_features` names the features then.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import islice
from pathlib import Path
from typing import Final

import djinn_jupyter as dj
from demo_training import grammar as g
from djinn_jupyter.demo import SAE_PATH

SITE: Final = "resid_post.4"
DOCUMENTS_SEED: Final = 7


def collected(engine: dj.RemoteEngine, documents: int, folder: Path) -> dj.Activations:
    """Return the residuals of training documents, all positions."""
    texts = [document.text for document in islice(g.training_documents(DOCUMENTS_SEED), documents)]
    return engine.collect(texts, SITE, to=folder)


def say(done: int, of: int, loss: float) -> None:
    print(f"step {done} of {of}: loss {loss:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=SAE_PATH)
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--active", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    engine = dj.load("demo")
    with tempfile.TemporaryDirectory() as folder:
        sae = dj.train_sae(
            collected(engine, arguments.documents, Path(folder)),
            to=arguments.to,
            features=arguments.features,
            active=arguments.active,
            steps=arguments.steps,
            on_progress=say,
        )
    print({name: round(value, 4) for name, value in sae.figures.items()})


if __name__ == "__main__":
    main()
