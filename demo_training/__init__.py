"""The grammar of the demo model's language, and the scripts that trained and measured the model. Not in the wheel."""

from pathlib import Path

from djinn_jupyter.demo import MODEL_PATH

EVALUATION = Path(__file__).parent / "evaluation.json"
TRAINING_LOG = Path(__file__).parent / "train.log"
CARD = MODEL_PATH.parent / "MODEL_CARD.md"
"""Ships with the model; `evaluate` writes it."""
