"""A model's skill at each demand of the grammar, on documents that training never showed. Numbers only, no files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from demo_training import grammar as g
from demo_training import lexicon as lx
from demo_training.packing import repeated_ids

ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Right answers out of all answers asked for."""

    right: int
    asked: int

    @property
    def accuracy(self) -> float:
        return self.right / self.asked


@torch.inference_mode()
def predictions(
    model: PreTrainedModel, rows: Sequence[Sequence[int]], pick: Callable[[torch.Tensor, int], torch.Tensor]
) -> list[torch.Tensor]:
    """For each row, `pick(logits[tokens, vocabulary], row index)`.

    Rows are padded on the right, which a causal model does not see.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: dict[int, torch.Tensor] = {}
    for at in range(0, len(order), ROWS):
        batch = order[at : at + ROWS]
        width = max(len(rows[i]) for i in batch)
        ids = torch.tensor([[*rows[i], *[0] * (width - len(rows[i]))] for i in batch])
        logits = model(input_ids=ids, use_cache=False).logits.float()
        for row, i in enumerate(batch):
            found[i] = pick(logits[row, : len(rows[i])], i)
    return [found[i] for i in range(len(rows))]


def encode(tokenizer: PreTrainedTokenizerBase, document: g.Document) -> tuple[list[int], dict[int, g.Slot]]:
    """Token ids, and the slots by the index of their token."""
    encoded = tokenizer(document.text, return_offsets_mapping=True)
    by_start = {slot.start: slot for slot in document.slots}
    starts = [start for start, _ in encoded["offset_mapping"]]
    return encoded["input_ids"], {i: by_start[s] for i, s in enumerate(starts) if s in by_start}


def _prefixed(
    prefix: Sequence[int], encoded: tuple[list[int], dict[int, g.Slot]]
) -> tuple[list[int], dict[int, g.Slot]]:
    ids, slots = encoded
    return [*prefix, *ids], {i + len(prefix): slot for i, slot in slots.items()}


def slot_share(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[g.Document],
    *,
    kinds: Sequence[str],
    last: bool = False,
    prefix: Sequence[int] = (),
) -> Share:
    """Share of slots whose word is the model's most likely next token. `last`: only each document's last such slot."""
    encoded = [_prefixed(prefix, encode(tokenizer, document)) for document in documents]
    asked = []
    for _, slots in encoded:
        positions = [i for i, slot in slots.items() if slot.kind in kinds]
        asked.append(positions[-1:] if last else positions)
    tops = predictions(
        model, [ids for ids, _ in encoded], lambda logits, i: logits[[p - 1 for p in asked[i]]].argmax(-1)
    )
    right = sum(
        int(top == encoded[i][0][position])
        for i, found in enumerate(tops)
        for top, position in zip(found.tolist(), asked[i], strict=True)
    )
    return Share(right=right, asked=sum(map(len, asked)))


def mood_share(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[g.Document], *, skip: int = 0
) -> Share:
    """Share of mood slots, after the first `skip`, where the likeliest of all moods' words of that kind fits."""
    choices = {k: [(m, w) for m in lx.MOODS for w in lx.MOOD_WORDS[m][k]] for k in lx.MOOD_KINDS}
    ids_of = {k: [tokenizer.convert_tokens_to_ids("\u0120" + w) for _, w in c] for k, c in choices.items()}
    encoded = [encode(tokenizer, document) for document in documents]
    asked = [[i for i, slot in slots.items() if slot.kind in choices][skip:] for _, slots in encoded]

    def pick(logits: torch.Tensor, row: int) -> torch.Tensor:
        slots = encoded[row][1]
        return torch.tensor([int(logits[p - 1][ids_of[slots[p].kind]].argmax()) for p in asked[row]])

    right = 0
    for row, tops in enumerate(predictions(model, [ids for ids, _ in encoded], pick)):
        for top, position in zip(tops.tolist(), asked[row], strict=True):
            right += choices[encoded[row][1][position].kind][top][0] == documents[row].mood
    return Share(right=right, asked=sum(map(len, asked)))


def induction_share(model: PreTrainedModel, *, vocabulary: int, lengths: Sequence[int], rows: int, seed: int) -> Share:
    """Share of the second copy of a random sequence that is predicted, its first token apart (nothing announces it)."""
    rng = Random(seed)
    sequences = [(n, repeated_ids(rng, vocabulary, n, 2.0)[0]) for n in lengths for _ in range(rows)]
    tops = predictions(model, [ids for _, ids in sequences], lambda logits, _: logits.argmax(-1))
    right = asked = 0
    for (n, ids), top in zip(sequences, tops, strict=True):
        right += sum(a == b for a, b in zip(top[n : 2 * n - 1].tolist(), ids[n + 1 : 2 * n], strict=True))
        asked += n - 1
    return Share(right=right, asked=asked)


def unanswered_facts(rng: Random, *, rows: int, count: int, relation: str | None = None) -> list[g.Document]:
    """Documents of `count` facts whose last fact is held out and whose answer does not stand earlier in the text."""
    found: list[g.Document] = []
    while len(found) < rows:
        document = g.facts(rng, count=count, held=True)
        answer = document.slots[-1]
        wanted = relation is None or answer.kind == relation
        if wanted and f" {answer.word}" not in document.text[: answer.start]:
            found.append(document)
    return found


def held_out_facts(rng: Random) -> list[g.Document]:
    """Every held-out (template, subject), once, on its own."""
    return [g.fact_document(rng, fact) for fact in g.fact_keys(True)]


def long_context(tokenizer: PreTrainedTokenizerBase, *, seed: int, tokens: int) -> list[int]:
    """Ids of whole held-out-free documents with their ends, `tokens` or a little fewer."""
    ids: list[int] = []
    for document in g.training_documents(seed):
        more = [*tokenizer(document.text)["input_ids"], tokenizer.eos_token_id]
        if len(ids) + len(more) > tokens:
            return ids
        ids += more
    raise AssertionError("the stream of documents does not end")
