"""An engine in this process with a small model that has a tokenizer, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.modules.training import again, calls, running
from djinn_jupyter.modules.training.jobs import AnyJob
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.engine.words import tokenizer
from tests.families import build
from tests.threads import one_thread


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with one_thread():
        yield build_desk(build("llama", layers=3), tokenizer())


@pytest.fixture
def engine(desk: Desk) -> Iterator[RemoteEngine]:
    with reached(desk) as [engine]:
        yield engine


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama", layers=3).double()


@pytest.fixture(scope="module")
def wide(model: Any) -> Iterator[RemoteEngine]:
    """An engine of that model, whose passes can be compared with its own."""
    with one_thread(), reached(build_desk(model)) as [engine]:
        yield engine


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings run in this process, as their own takes seconds to import torch; test_training.py has real ones."""

    def train(job: AnyJob, on_progress: Any) -> None:
        def report(done: int, of: int, loss: torch.Tensor) -> bool:
            if on_progress is not None:
                on_progress(done, of, float(loss.detach()))
            return False

        deterministic = torch.are_deterministic_algorithms_enabled()
        try:
            with one_thread(), torch.enable_grad():
                running.run(msgspec.json.decode(msgspec.json.encode(job), type=AnyJob), report)
        finally:
            torch.use_deterministic_algorithms(deterministic)

    for module in (again, calls):
        monkeypatch.setattr(module, "train", train)
