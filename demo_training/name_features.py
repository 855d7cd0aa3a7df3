"""Names the features of the demo model's SAE by the grammar: `python -m demo_training.name_features`.

A feature gets the label of the grammar (`labels.py`) that it fires with most exactly: that of the highest F1, the
harmonic mean of precision and recall, over the tokens of training documents. What is written for the name are the
figures of held-out documents, which training never had. Those documents are written beside it, for others to check.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_training import grammar as g
from demo_training import lexicon as lx
from demo_training.labels import labels_of
from djinn_jupyter.demo import DOCUMENTS_PATH, MODEL_PATH, NAMES_PATH, SAE_PATH

LAYER: Final = 4
NAMED_BY, CHECKED_BY = 2000, 800  # documents
NAMING_SEED, CHECKING_SEED, SHIPPED_SEED = 1_000_007, 1_000_009, 1_000_013
SHIPPED: Final = 150  # held-out documents
LEAST_F1: Final = 0.4  # of a name
DIGITS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    """Documents as the SAE reads them: which features fire at each token, and the labels of the grammar there."""

    ids: list[list[int]]
    fires_TF: Tensor
    labels: list[set[str]]


def held_out_documents(seed: int) -> Iterator[g.Document]:
    """An endless stream of documents, each with something that training never had, but lists of words."""
    rng = Random(seed)
    while True:
        choice = rng.random()
        if choice < 0.38:
            yield g.facts(rng, count=rng.choice((1, 1, 2, 3, 4, 6)), held=True)
        elif choice < 0.67:
            yield g.scene(rng, held=True, lead=rng.choice((0, 0, 0, 1, 2)))
        elif choice < 0.94:
            yield g.story(rng, rng.choice(lx.MOODS), held=True, neutral=rng.random() < 0.35)
        elif choice < 0.97:
            yield g.words(rng, length=int(2 ** rng.uniform(2, 5)), copies=rng.uniform(1.6, 3))
        else:
            yield g.succession(rng, held=True)


@torch.inference_mode()
def read(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, sae: dict[str, Tensor], documents: Sequence[g.Document]
) -> Read:
    ids, fires, labels = [], [], []
    for document in documents:
        encoded = tokenizer(document.text, return_offsets_mapping=True)
        ids.append(encoded["input_ids"])
        ends = [end for _, end in encoded["offset_mapping"]]
        states = model.model(torch.tensor([ids[-1]]), output_hidden_states=True).hidden_states
        before = ((states[LAYER + 1][0] - sae["b_dec"]) @ sae["W_enc"] + sae["b_enc"]).relu()
        fires.append(before > sae["threshold"])
        labels += labels_of(document, ends, [tokenizer.decode([one]) for one in ids[-1]])
    return Read(ids=ids, fires_TF=torch.cat(fires), labels=labels)


def agreement(found: Read, names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return precision, recall and F1 of each feature and label, [F, labels]; 0 where neither is there."""
    places = {name: place for place, name in enumerate(names)}
    there_TL = torch.zeros(len(found.labels), len(names))
    for token, labels in enumerate(found.labels):
        there_TL[token, [places[name] for name in labels if name in places]] = 1
    fires_TF = found.fires_TF.float()
    both = fires_TF.T @ there_TL
    fired, there = fires_TF.sum(0)[:, None], there_TL.sum(0)[None]
    return both / fired.clamp(min=1), both / there.clamp(min=1), 2 * both / (fired + there).clamp(min=1)


def at_random(by: Read, checked: Read) -> int:
    """Return how many names as many features have that fire as often, anywhere: by chance."""
    draw = torch.Generator().manual_seed(NAMING_SEED)

    def shuffled(found: Read) -> Read:
        fires_TF = torch.stack(
            [column[torch.randperm(len(column), generator=draw)] for column in found.fires_TF.unbind(1)], 1
        )
        return Read(ids=found.ids, fires_TF=fires_TF, labels=found.labels)

    return len(named(shuffled(by), shuffled(checked)))


def named(by: Read, checked: Read) -> list[dict[str, Any]]:
    """Return the features that have a name, best first, with the figures of the name on the checked documents."""
    names = sorted(set().union(*by.labels))
    chosen = agreement(by, names)[2].max(1)
    precision, recall, f1 = agreement(checked, names)
    found = [
        {
            "feature": feature,
            "name": names[place],
            "precision": round(float(precision[feature, place]), DIGITS),
            "recall": round(float(recall[feature, place]), DIGITS),
            "f1": round(float(f1[feature, place]), DIGITS),
        }
        for feature, (score, place) in enumerate(zip(chosen.values.tolist(), chosen.indices.tolist(), strict=True))
        if score >= LEAST_F1
    ]
    return sorted(found, key=lambda one: (-one["f1"], one["feature"]))


def shipped(found: Read, names: set[str]) -> dict[str, Any]:
    """Return documents with the tokens at which each of some labels holds, counted over all documents."""
    where = {name: [at for at, labels in enumerate(found.labels) if name in labels] for name in sorted(names)}
    return {"ids": found.ids, "where": where}


def main() -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()
    sae = load_file(SAE_PATH / "sae_weights.safetensors")

    def reading(stream: Iterator[g.Document], count: int) -> Read:
        return read(model, tokenizer, sae, list(islice(stream, count)))

    by = reading(g.training_documents(NAMING_SEED), NAMED_BY)
    checked = reading(held_out_documents(CHECKING_SEED), CHECKED_BY)
    names = named(by, checked)
    said = {
        "features": len(sae["b_enc"]),
        "named": len(names),
        "mean_f1": round(sum(one["f1"] for one in names) / len(names), DIGITS),
        "named_by_chance": at_random(by, checked),
        "documents": {"named_by": NAMED_BY, "checked_by": CHECKED_BY, "tokens_checked": len(checked.labels)},
        "names": names,
    }
    NAMES_PATH.write_text(json.dumps(said, indent=1) + "\n")
    beside = shipped(reading(held_out_documents(SHIPPED_SEED), SHIPPED), {one["name"] for one in names})
    DOCUMENTS_PATH.write_text(json.dumps(beside) + "\n")
    print({name: value for name, value in said.items() if name != "names"})


if __name__ == "__main__":
    main()
