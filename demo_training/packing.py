"""From documents to rows of token ids: which tokens follow each other, and how much each counts in the loss.

A token that the text determines counts 1 or more; the rest, which is chance and habit, counts little; random ids count
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import torch
from transformers import PreTrainedTokenizerBase

from demo_training.grammar import Document, training_documents

CHANCE = 0.2
WEIGHTS = {"random": 0.0, "io": 3.0, "person": 2.0}  # other slots: 1
Row = tuple[list[int], list[float]]


def repeated_ids(rng: Random, vocabulary: int, length: int, copies: float) -> Row:
    """Random ids, then the same again: ids, and weights that ask for the copy only."""
    once = [rng.randrange(vocabulary) for _ in range(length)]
    total = max(length + 1, round(length * copies))
    ids = (once * math.ceil(total / length))[:total]
    return ids, [0.0] * length + [1.0] * (total - length)


class Packer:
    """Fills rows with documents; every row begins with a document, and `<|endoftext|>` closes each.

    A row cuts its last document short and the next row begins with a new one, so prompts need no BOS token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.repeated_share = 0.0
        """Share of pieces that are repeated random ids; may be changed between rows."""
        self._tokenizer = tokenizer
        self._end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        self._documents = training_documents(seed)
        self._rng = Random(seed + 1)

    def _encode(self, document: Document) -> Row:
        encoded = self._tokenizer(document.text, return_offsets_mapping=True)
        ids: list[int] = list(encoded["input_ids"])
        weights = {slot.start: WEIGHTS.get(slot.kind, 1.0) for slot in document.slots}
        return ids, [weights.get(start, CHANCE) for start, _ in encoded["offset_mapping"]]

    def _pieces(self, length: int) -> Iterator[Row]:
        while True:
            if self._rng.random() < self.repeated_share:
                repeat = int(2 ** self._rng.uniform(2, math.log2(length * 0.45)))
                yield repeated_ids(self._rng, self._end, repeat, self._rng.uniform(1.6, 3))
            else:
                yield self._encode(next(self._documents))

    def row(self, length: int) -> Row:
        ids: list[int] = []
        weights: list[float] = []
        for piece_ids, piece_weights in self._pieces(length):
            ids += [*piece_ids, self._end]
            weights += [*piece_weights, CHANCE]
            if len(ids) >= length:
                return ids[:length], weights[:length]
        raise AssertionError("the stream of pieces does not end")

    def batch(self, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids, int64[rows, length], and the weight of each as an answer, float32[rows, length]."""
        filled = [self.row(length) for _ in range(rows)]
        return torch.tensor([ids for ids, _ in filled]), torch.tensor([weights for _, weights in filled])
