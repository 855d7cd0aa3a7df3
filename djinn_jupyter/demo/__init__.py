"""The demo model: a small trained decoder, as files, with its card. `demo_training/` of the repository makes them."""

from pathlib import Path

MODEL_PATH = Path(__file__).parent / "model"
"""The folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load, offline."""
