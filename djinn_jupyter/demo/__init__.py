"""The demo model: a small trained decoder, as files, with its card, an SAE of its layer 4, whose features have names,
and transcoders of its MLPs. `demo_training/` of the repository makes them."""

from pathlib import Path

MODEL_PATH = Path(__file__).parent / "model"
"""The folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load, offline."""
SAE_PATH = Path(__file__).parent / "sae"
"""The folder of the SAE of `resid_post.4`, for `engine.add_module`."""
TRANSCODERS_PATH = Path(__file__).parent / "transcoders"
"""The folder of the transcoders of all MLPs, for `engine.add_transcoders`."""
NAMES_PATH = Path(__file__).parent / "sae_names.json"
"""The names that the model's grammar gives to features, and how well each fits on held-out documents."""
DOCUMENTS_PATH = Path(__file__).parent / "sae_documents.json"
"""Held-out documents as token ids, and the tokens at which each name of the grammar holds."""
