"""Builds the demo tokenizer: byte-level BPE in which every word of the grammar is one token.

Three layers of vocabulary: the 256 bytes, so that any text can be written; a few hundred merges learned from the
grammar's own words, so that unknown English words take a few tokens; and every word of the grammar whole, with its
leading space, and without one if it is capitalised and can begin a document. `ignore_merges` makes a whole word win.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from demo_training.grammar import all_words, training_documents
from djinn_jupyter.demo import MODEL_PATH

END = "<|endoftext|>"
SPACE = "\u0120"  # how byte-level BPE writes a space
LEARNED = 520  # bytes and learned merges together
CONTEXT = 1024


def _learned() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges learned from every word of the grammar and a sample of its text."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNED, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    sample = [document.text for document in islice(training_documents(seed=7), 300)]
    learner.train_from_iterator([" ".join(all_words())] * 4 + sample, trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def build() -> PreTrainedTokenizerFast:
    """The tokenizer, without touching the disk."""
    vocab, merges = _learned()
    whole = [SPACE + word for word in all_words()]
    whole += [word for word in all_words() if word[0].isupper()] + ["'s"]
    for word in whole:
        vocab.setdefault(word, len(vocab))
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MODEL_PATH)
    tokenizer = build()
    tokenizer.save_pretrained(parser.parse_args().out)
    print(f"{len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
