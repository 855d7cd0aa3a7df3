"""The engine of a step's large model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.gpu.shapes import Scale
from djinn_evaluation.benchmarks.setting import Setting
from djinn_jupyter.api.engine import RemoteEngine

TINY_PAGE = 16  # positions; a small session would not fill a page of the usual size


@contextmanager
def serving(folder: Path, setting: Setting, **options: Any) -> Iterator[RemoteEngine]:
    """Start the engine of a saved model with nothing else on it; end it, its sessions too, with the block."""
    page = {"page_positions": TINY_PAGE} if setting.quick else {}
    with ExitStack() as stack:
        engine = dj.load(folder, threads=setting.threads, **page, **options)
        stack.callback(engine.stop, force=True, forget=True)
        yield engine


def scale_of(setting: Setting) -> Scale:
    return Scale(factor=setting.factor)
