"""docs/coming_from.md: the lines in Djinn's words run, and say the same as plain PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import djinn_jupyter as dj
from djinn_jupyter.demo import MODEL_PATH
from tests.integrations import coming_from

pytestmark = pytest.mark.processes
TOOLS = ("TransformerLens", "nnsight", "Djinn", "TransformerLens on an engine", "nnsight on an engine")


def test_every_block_of_the_page_is_of_a_tool_whose_lines_are_run() -> None:
    page = coming_from.PAGE.read_text(encoding="utf-8")
    assert sum(len(coming_from.blocks_of(tool)) for tool in TOOLS) == len(re.findall("```python", page)) == 19


def test_the_lines_in_djinns_words_give_what_they_say(tmp_path: Path) -> None:
    left = coming_from.run("Djinn", tmp_path)
    try:
        model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
        line = torch.tensor([left["tokens"]])
        with torch.inference_mode():
            plain = model(line, output_hidden_states=True)
            hook = model.model.layers[4].register_forward_hook(lambda module, args, output: output * 0.5)
            halved = model(line).logits
            hook.remove()
        assert left["words"] == ("The", " capital", " of", " France", " is")
        assert np.array_equal(left["logits"], plain.logits[0].numpy())
        assert np.array_equal(left["residual"], plain.hidden_states[5][0].numpy())
        assert np.array_equal(left["edited"], halved[0].numpy())
        assert left["answer"] == " Paris."
        assert left["residuals"].values.shape == (8, 5)
        assert abs(left["parts"].rest) < 1e-4
        assert not np.array_equal(left["steered"], left["edited"])
        assert left["patched"].shape == (1393,)
    finally:
        left["engine"].stop(force=True, forget=True)


def test_nnterps_names_are_sites(tmp_path: Path) -> None:
    """Those that the page names, spelled as nnterp spells them."""
    engine = dj.load("demo")
    try:
        session = engine.session("names", fresh=True)
        said = coming_from.PAGE.read_text(encoding="utf-8").partition("nnterp's names of places")[2]
        names = re.findall(r"(?:`|\(\")((?:\w+s_\w+|attention_probabilities)\[\d\])", said)
        assert set(names) == {"layers_output[4]", "attentions_output[5]", "mlps_input[5]", "attention_probabilities[3]"}
        session.breakpoint("ln_final")
        session.run("The capital of France is", max_new_tokens=0)
        theirs = session.values(*names)
        ours = session.values("resid_post.4", "attn_out.5", "mlp_in.5", "pattern.3")
        for one, other in zip(sorted(theirs), ("pattern.3", "attn_out.5", "resid_post.4", "mlp_in.5"), strict=True):
            assert np.array_equal(theirs[one], ours[other]), one
    finally:
        engine.stop(force=True, forget=True)
