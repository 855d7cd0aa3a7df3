"""Trains the demo model from nothing; `train.log` is what this printed:

    OMP_WAIT_POLICY=passive python -m demo_training.train --compile > demo_training/train.log

The same seed reads the same documents. Sums of floats differ in their last bits from run to run, so weights do too.

Hidden matrices are moved by Muon, embeddings and norms by AdamW; the arithmetic is bfloat16 under autocast. The
first steps read short rows with many repeated random ids, until heads that copy have formed; later every eighth step
reads rows of the full context. Weights are rounded to bfloat16 before they are saved.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_training import grammar as g
from demo_training import skills
from demo_training.lexicon import MOODS, RELATIONS
from demo_training.packing import Packer
from demo_training.tokenizer import CONTEXT
from djinn_jupyter.demo import MODEL_PATH

STEP_TOKENS, FIRST_LENGTH, LENGTH, LONG_EVERY = 2048, 64, 256, 8
REPEATED_FIRST, REPEATED_REST, FIRST_STEPS = 0.30, 0.12, 800
MUON_RATE, ADAM_RATE, WARMUP = 0.015, 2e-3, 60


def new_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Eight layers of four heads, tied embeddings, rotary positions."""
    end = tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = LlamaForCausalLM(config)
    begin_as_copier(model)
    return model


@torch.no_grad()
def begin_as_copier(model: LlamaForCausalLM) -> None:
    """Starting weights under which heads attend to tokens like their own and pass on what they see.

    Queries equal keys, and outputs are transposed values (after Trockman and Kolter 2023, "Mimetic initialization of
    self-attention layers"). All embeddings share one direction, which head 0 of layer 0 uses to look one token back.
    Without this, heads that copy had not formed after two million tokens.
    """
    width = model.config.hidden_size
    shared = torch.ones(width)
    shared[::2] = -1
    model.model.embed_tokens.weight.normal_(0, 0.1).add_(0.1 * shared)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for projection, spread in ((attention.q_proj, 0.08), (attention.v_proj, 0.06)):
            weight = projection.weight.normal_(0, spread)
            weight.sub_(torch.outer(weight @ shared, shared) / width)
        attention.k_proj.weight.copy_(attention.q_proj.weight)
        attention.o_proj.weight.copy_(0.2 * attention.v_proj.weight.T)
        mlp.gate_proj.weight.normal_(0, 0.04)
        mlp.up_proj.weight.normal_(0, 0.04)
        mlp.down_proj.weight.normal_(0, 0.01)
    look_back(model.model.layers[0].self_attn, model.config.head_dim, shared)


@torch.no_grad()
def look_back(attention: Any, size: int, shared: torch.Tensor) -> None:
    """Makes head 0 attend to the token before: its key is its query turned by one position, at quick frequencies."""
    query, key = torch.zeros(size), torch.zeros(size)
    for at, strength in enumerate((40.0, 20.0, 10.0)):
        angle = 10000.0 ** (-2 * at / size)
        query[at] = key[at] = strength**0.5
        key[at], key[at + size // 2] = key[at] * math.cos(angle), key[at] * math.sin(angle)
    reading = shared / len(shared) * 2**0.5
    attention.q_proj.weight[:size] = torch.outer(query, reading)
    attention.k_proj.weight[:size] = torch.outer(key, reading)
    attention.o_proj.weight[:, :size] *= 4


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the rest."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if p.ndim < 2 or "layers" not in name]
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


class Schedule:
    """Share of the full learning rate: up, flat for `flat` steps, then linearly down to nothing in `fall` steps.

    An interrupt begins the fall at once; the log then says how long the flat part was, to be named next time.
    """

    def __init__(self, *, flat: int, fall: int) -> None:
        self.flat, self.fall = flat, fall

    @property
    def steps(self) -> int:
        return self.flat + self.fall

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / WARMUP, (self.steps - step) / self.fall)

    def begin_to_fall(self, step: int) -> None:
        self.flat = min(self.flat, step)


def row_length(step: int) -> int:
    """Short rows first, then longer ones, and every few steps the full context."""
    if step < FIRST_STEPS:
        return FIRST_LENGTH
    return CONTEXT if step % LONG_EVERY == LONG_EVERY - 1 else LENGTH


def loss_of(model: Any, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross entropy of the next token. ids: int64[rows, length], weights: float32[rows, length]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits.float()
    each = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    asked = weights[:, 1:].flatten()
    return (each * asked).sum() / asked.sum()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """bfloat16 on disk, float32 as the dtype to compute in unless the user names another."""
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id, do_sample=False, max_new_tokens=80
    )
    model.save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def glimpse(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """Held-out accuracy of each skill on few documents, in float32, for the log."""
    rng, end = Random(11), tokenizer.eos_token_id
    facts = skills.held_out_facts(rng)[::6]
    scenes = [g.scene(rng, held=True) for _ in range(60)]
    stories = [g.story(rng, rng.choice(MOODS), held=True) for _ in range(30)]
    found = {
        "facts": skills.slot_share(model, tokenizer, facts, kinds=RELATIONS),
        "scenes": skills.slot_share(model, tokenizer, scenes, kinds=("io",)),
        "stories": skills.mood_share(model, tokenizer, stories, skip=1),
        "induction": skills.induction_share(model, vocabulary=end, lengths=(10, 30), rows=6, seed=12),
    }
    return {name: share.accuracy for name, share in found.items()}


def train(*, schedule: Schedule, seed: int, out: Path, compiled: bool) -> None:
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    model = new_model(tokenizer)
    forward = torch.compile(model) if compiled else model
    packer, movers = Packer(tokenizer, seed), optimizers(model)
    bases = [mover.param_groups[0]["lr"] for mover in movers]
    size = sum(p.numel() for p in model.parameters())
    steps = f"{schedule.flat} + {schedule.fall} steps"
    print(f"seed {seed}, {steps}, {size} parameters, torch {torch.__version__}", flush=True)
    began, losses, tokens = time.perf_counter(), [], 0
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    for step in count():
        if step == schedule.steps:
            break
        if interrupts:
            interrupts.clear()
            schedule.begin_to_fall(step)
            print(f"interrupted: {schedule.flat} + {schedule.fall} steps", flush=True)
        packer.repeated_share = REPEATED_FIRST if step < FIRST_STEPS else REPEATED_REST
        length = row_length(step)
        ids, weights = packer.batch(STEP_TOKENS // length, length)
        loss = loss_of(forward, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for mover, base in zip(movers, bases, strict=True):
            mover.param_groups[0]["lr"] = base * schedule(step)
            mover.step()
            mover.zero_grad()
        losses.append(loss.item())
        tokens += ids.numel()
        if step % 50 == 49 or step == schedule.steps - 1:
            mean, seconds, cores = sum(losses) / len(losses), time.perf_counter() - began, time.process_time()
            spent = f"seconds {seconds:6.0f}  of processor {cores:6.0f}"
            print(f"step {step + 1:5d}  loss {mean:.4f}  tokens {tokens:9d}  {spent}", flush=True)
            losses.clear()
        if step % 150 == 149:
            print(" ".join(f"{k} {v:.3f}" for k, v in glimpse(model, tokenizer).items()), flush=True)
    save(model, tokenizer, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flat", type=int, default=2000, help="steps at the full rate")
    parser.add_argument("--fall", type=int, default=1600, help="steps of falling rate after them")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--out", type=Path, default=MODEL_PATH)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="faster after a minute; needs a C++ compiler")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    schedule = Schedule(flat=arguments.flat, fall=arguments.fall)
    train(schedule=schedule, seed=arguments.seed, out=arguments.out, compiled=arguments.compile)


if __name__ == "__main__":
    main()
