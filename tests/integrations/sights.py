"""nnsight's model on an engine and on its own, and what is compared of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.system.config import EngineConfig
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.threads import one_thread

NEEDS_NNSIGHT = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("nnsight") is None, reason="no nnsight here: make peers"),
    pytest.mark.filterwarnings("ignore:.*LanguageModel is deprecated.*", "ignore:.*was never reached.*"),
]
TEXT, OTHER = "The capital of France is", "The capital of Italy is"


def plain_model(attention: str = "sdpa", dtype: str = "float32") -> Any:
    from nnsight.modeling.transformers import TransformersModel

    return TransformersModel(
        str(MODEL_PATH),
        task="text-generation",
        dispatch=True,
        attn_implementation=attention,
        dtype=getattr(torch, dtype),
    )


def on(engine: RemoteEngine, folder: Path | str | None = MODEL_PATH, **settings: Any) -> Any:
    from djinn_jupyter.integrations.nnsight import LanguageModel

    return LanguageModel(engine, folder, **settings)


@contextmanager
def demo_engine(dtype: str = "float32") -> Iterator[RemoteEngine]:
    with one_thread():
        loaded = load_model(EngineConfig(model="demo", dtype=dtype))
        with reached(build_desk(loaded.model, loaded.tokenizer)) as [engine]:
            yield engine


@contextmanager
def both(engine: RemoteEngine) -> Iterator[tuple[Any, Any]]:
    """Yield the model on this engine, and nnsight's own."""
    ours = on(engine)
    with torch.no_grad():
        yield ours, plain_model()
    ours.close()
    assert engine.sessions() == ()


def require_same(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs) > 0
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one.dtype == other.dtype, number
        assert torch.equal(one, other), number


def patch_between_traces(model: Any) -> list[Tensor]:
    with model.trace(TEXT):
        clean = model.model.layers[4].output[:, -1].save()
    with model.trace(OTHER):
        model.model.layers[4].output[:, -1] = clean
        patched = model.lm_head.output.save()
    return [clean, patched]
