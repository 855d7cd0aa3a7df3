"""The transcoders that ship with the demo model: small, of this very model, and in place of its MLPs nearly as good."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo_training import grammar as g
from demo_training import train_transcoders
from djinn_jupyter.demo import DOCUMENTS_PATH, MODEL_PATH, TRANSCODERS_PATH
from djinn_jupyter.engine.store.identity import identity_of
from djinn_jupyter.modules.files.folder import read_folder
from tests.threads import one_thread

LAYERS = 8
PROVENANCE = json.loads((TRANSCODERS_PATH / "provenance.json").read_text())


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()


def test_they_are_small_and_in_the_form_of_circuit_tracer() -> None:
    assert sum(path.stat().st_size for path in TRANSCODERS_PATH.iterdir()) <= 2_000_000
    for layer in range(LAYERS):
        found = read_folder(TRANSCODERS_PATH, layer)
        assert (found.form.kind, found.form.activation) == ("transcoder", "jumprelu")
        assert (found.form.trained_at, found.form.written_at) == (
            f"blocks.{layer}.mlp.hook_in",
            f"blocks.{layer}.mlp.hook_out",
        )
        assert found.tensors["W_enc"].shape == (PROVENANCE[layer]["training"]["features"], 128)


def test_they_were_trained_on_this_model_by_the_script(model: Any) -> None:
    identity = identity_of(model, torch.device("cpu"))
    assert [one["training"]["site"] for one in PROVENANCE] == [f"mlp_in.{layer}" for layer in range(LAYERS)]
    for one in PROVENANCE:
        trained = one["collection"]["model"]
        assert (trained["weights"], trained["configuration"]) == (identity.weights, identity.configuration)
    count = PROVENANCE[0]["collection"]["prompts"]["count"]
    documents = islice(g.training_documents(train_transcoders.DOCUMENTS_SEED), count)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    tokens = sum(len(ids) for ids in tokenizer([one.text for one in documents])["input_ids"])
    assert tokens == PROVENANCE[0]["collection"]["prompts"]["tokens"]


class Replaced(nn.Module):
    """An MLP made by a transcoder, or by zeros."""

    def __init__(self, layer: int, *, by_features: bool) -> None:
        super().__init__()
        self.of, self.by_features = load_file(TRANSCODERS_PATH / f"layer_{layer}.safetensors"), by_features

    def forward(self, x: Tensor) -> Tensor:
        before = x @ self.of["W_enc"].T + self.of["b_enc"]
        features = before.relu() * (before > self.of["activation_function.threshold"])
        made = features @ self.of["W_dec"] + self.of["b_dec"]
        return made if self.by_features else torch.zeros_like(made)


def test_in_place_of_an_mlp_each_loses_less_than_none_would(model: Any) -> None:
    documents = json.loads(DOCUMENTS_PATH.read_text())["ids"][:20]

    def loss() -> float:
        each = [
            model(ids, labels=ids).loss * (ids.shape[1] - 1) for ids in map(torch.tensor, ([one] for one in documents))
        ]
        return float(sum(each)) / sum(len(one) - 1 for one in documents)

    with one_thread(), torch.inference_mode():
        whole = loss()
        for layer in range(LAYERS):
            own = model.model.layers[layer].mlp
            lost = []
            for by_features in (True, False):
                model.model.layers[layer].mlp = Replaced(layer, by_features=by_features)
                lost.append(loss() - whole)
            model.model.layers[layer].mlp = own
            assert lost[0] < lost[1], layer
