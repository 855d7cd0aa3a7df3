"""The SAE and the transcoders of the demo model are what their provenance says."""

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
from demo_training import train_sae, train_transcoders
from demo_training.labels import labels_of
from demo_training.name_features import LAYER, LEAST_F1, held_out_documents
from djinn_jupyter.demo import DOCUMENTS_PATH, MODEL_PATH, NAMES_PATH, SAE_PATH, TRANSCODERS_PATH
from djinn_jupyter.engine.store.identity import identity_of
from djinn_jupyter.modules.files.folder import read_folder
from tests.threads import one_thread

PROVENANCE = json.loads((SAE_PATH / "provenance.json").read_text())
NAMES = json.loads(NAMES_PATH.read_text())
DOCUMENTS = json.loads(DOCUMENTS_PATH.read_text())


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def fires(model: Any) -> Tensor:
    """Which features fire at the tokens of the shipped documents, by plain hooks and the formula of a JumpReLU."""
    sae = load_file(SAE_PATH / "sae_weights.safetensors")
    with one_thread(), torch.inference_mode():
        states = [model.model(torch.tensor([ids]), output_hidden_states=True).hidden_states for ids in DOCUMENTS["ids"]]
        x = torch.cat([each[LAYER + 1][0] for each in states])
        return (x - sae["b_dec"]) @ sae["W_enc"] + sae["b_enc"] > sae["threshold"].clamp(min=0)


def test_it_is_small_and_in_the_form_of_saelens() -> None:
    files = [*SAE_PATH.iterdir(), NAMES_PATH, DOCUMENTS_PATH]
    assert sum(path.stat().st_size for path in files) <= 2_000_000
    found = read_folder(SAE_PATH)
    assert (found.form.activation, found.form.trained_at) == ("jumprelu", train_sae.SITE)
    assert found.tensors["W_enc"].shape == (128, NAMES["features"])


def test_it_was_trained_on_this_model_by_the_script(model: Any) -> None:
    identity = identity_of(model, torch.device("cpu"))
    trained = PROVENANCE["collection"]["model"]
    assert (trained["weights"], trained["configuration"]) == (identity.weights, identity.configuration)
    assert PROVENANCE["training"]["site"] == train_sae.SITE
    documents = islice(g.training_documents(train_sae.DOCUMENTS_SEED), PROVENANCE["collection"]["prompts"]["count"])
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    tokens = sum(len(ids) for ids in tokenizer([one.text for one in documents])["input_ids"])
    assert tokens == PROVENANCE["collection"]["prompts"]["tokens"]


def test_names_fit_on_documents_that_nothing_was_chosen_by(fires: Tensor) -> None:
    """Chosen on some documents, measured on others, and here on a third lot."""
    scores = [_f1(fires[:, one["feature"]], DOCUMENTS["where"][one["name"]]) for one in NAMES["names"]]
    assert sum(scores) / len(scores) == pytest.approx(NAMES["mean_f1"], abs=0.05)
    assert sum(scores) / len(scores) > LEAST_F1
    assert NAMES["named"] > 20 * max(1, NAMES["named_by_chance"])
    one_further = [_f1(fires[:, one["feature"]], DOCUMENTS["where"][other["name"]]) for one, other in _neighbours()]
    assert sum(one_further) / len(one_further) < 0.15


def test_the_shipped_documents_are_held_out_and_labelled_by_the_grammar() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    texts = [tokenizer.decode(ids) for ids in DOCUMENTS["ids"]]
    from demo_training.name_features import SHIPPED, SHIPPED_SEED

    documents = list(islice(held_out_documents(SHIPPED_SEED), SHIPPED))
    assert texts == [document.text for document in documents]
    assert all(any(map(g.held_out, one.keys)) for one in documents if one.kind != "words")
    capital = {at for name, where in DOCUMENTS["where"].items() if name == "a capital comes next" for at in where}
    flat = [token for ids in DOCUMENTS["ids"] for token in ids]
    assert {tokenizer.decode([flat[at + 1]]).strip() for at in capital} <= {row.capital for row in g.lx.COUNTRIES}


def test_labels_say_the_word_its_kind_what_follows_and_where_it_is() -> None:
    document = g.Document(
        text="It was a sad day in Rome.", kind="story", mood="sad", slots=(g.Slot(start=8, kind="feel", word="sad"),)
    )
    ends = [2, 6, 8, 12, 16, 19, 24, 25]
    texts = ["It", " was", " a", " sad", " day", " in", " Rome", "."]
    found = labels_of(document, ends, texts)
    assert found[2] == {'the word " a"', "a feeling comes next"}
    assert found[3] == {'the word " sad"', "a sad word", "a sad word (feel)", "in a sad story"}
    assert found[6] == {'the word " Rome"', "a capital", "in a sad story"}


def _f1(fires: Tensor, where: list[int]) -> float:
    holds = torch.zeros(len(fires), dtype=torch.bool)
    holds[where] = True
    return float(2 * (fires & holds).sum() / (fires.sum() + holds.sum()).clamp(min=1))


def _neighbours() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return features beside the name of another: a control."""
    names = NAMES["names"]
    return [(one, names[(place + 7) % len(names)]) for place, one in enumerate(names)]


LAYERS = 8
PROVENANCES = json.loads((TRANSCODERS_PATH / "provenance.json").read_text())


def test_they_are_small_and_in_the_form_of_circuit_tracer() -> None:
    assert sum(path.stat().st_size for path in TRANSCODERS_PATH.iterdir()) <= 2_000_000
    for layer in range(LAYERS):
        found = read_folder(TRANSCODERS_PATH, layer)
        assert (found.form.kind, found.form.activation) == ("transcoder", "jumprelu")
        assert (found.form.trained_at, found.form.written_at) == (
            f"blocks.{layer}.mlp.hook_in",
            f"blocks.{layer}.mlp.hook_out",
        )
        assert found.tensors["W_enc"].shape == (PROVENANCES[layer]["training"]["features"], 128)


def test_they_were_trained_on_this_model_by_the_script(model: Any) -> None:
    identity = identity_of(model, torch.device("cpu"))
    assert [one["training"]["site"] for one in PROVENANCES] == [f"mlp_in.{layer}" for layer in range(LAYERS)]
    for one in PROVENANCES:
        trained = one["collection"]["model"]
        assert (trained["weights"], trained["configuration"]) == (identity.weights, identity.configuration)
    count = PROVENANCES[0]["collection"]["prompts"]["count"]
    documents = islice(g.training_documents(train_transcoders.DOCUMENTS_SEED), count)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    tokens = sum(len(ids) for ids in tokenizer([one.text for one in documents])["input_ids"])
    assert tokens == PROVENANCES[0]["collection"]["prompts"]["tokens"]


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
