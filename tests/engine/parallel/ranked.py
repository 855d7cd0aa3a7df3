"""Engines whose model is split among ranks on the CPU, and the same model on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from tests.engine.desk import PAGE, Desk, tokens
from tests.families import configuration, randomise

PROMPT = tokens(13)
NEW = 4
LAYERS = 3
MIDDLE = 1


def saved(family: str, folder: Path, heads: int | None = None, layers: int = LAYERS) -> Path:
    """Save a tiny model, for a rank reads its weights from files; with `heads` it has so many of keys and values."""
    config: Any = configuration(family, layers)
    if heads is not None:
        config.num_key_value_heads = heads
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model, 0)
    model.save_pretrained(folder)
    return folder


@contextmanager
def split_desk(model: Path, ranks: int, **options: Any) -> Iterator[Desk]:
    desk = Desk(open_engine(_config(model, tensor_parallel=ranks, **options)))
    try:
        yield desk
    finally:
        desk.engine.close()


def whole_desk(model: Path, **options: Any) -> Desk:
    return Desk(open_engine(_config(model, **options)))


def _config(model: Path, **options: Any) -> EngineConfig:
    return EngineConfig(model=str(model), device="cpu", page_positions=PAGE, data_folder=model / "data", **options)
