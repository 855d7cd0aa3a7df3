"""The demo model: a small trained decoder, the grammar of its language, and the scripts that made and measured it.

Importing this package imports neither torch nor transformers; nothing outside this folder needs more than `MODEL_PATH`.
"""

from pathlib import Path

MODEL_PATH = Path(__file__).parent / "model"
"""The folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load, offline."""
