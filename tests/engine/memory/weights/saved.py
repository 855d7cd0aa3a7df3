"""Tiny models in folders of their own, and engines that load them from there as a user's engine does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from tests.device import DEVICE
from tests.engine.desk import PAGE, Desk
from tests.families import build


def save(folder: Path, family: str = "llama", **options: Any) -> Path:
    build(family, **options).save_pretrained(folder)
    return folder


def desk_from(folder: Path, progress: Any = lambda line: None, **config: Any) -> Desk:
    desk = Desk.__new__(Desk)
    desk.events = []
    wanted = EngineConfig(**{"model": str(folder), "page_positions": PAGE, "device": str(DEVICE), **config})
    desk.hears = desk.events.append
    desk.engine = open_engine(wanted, lambda event: desk.hears(event), progress)
    return desk
