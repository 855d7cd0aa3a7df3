"""A GPU seen from outside: through NVML where it answers, and a reason where it does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from djinn_evaluation import memory
from djinn_evaluation.nvml import Unseen, card, counted, nvml_name
from djinn_jupyter.wire.nouns import EngineStatistics
from tests.widgets.samples import statistics


@pytest.mark.parametrize(
    ("index", "visible", "name"),
    [(0, "", 0), (1, "", 1), (0, "3,1", 3), (1, "3,1", 1), (0, "GPU-8f3c", "GPU-8f3c"), (2, "0,1", 2)],
)
def test_a_card_is_named_as_the_environment_lets_cuda_count(index: int, visible: str, name: int | str) -> None:
    assert nvml_name(index, {"CUDA_VISIBLE_DEVICES": visible}) == name


def test_without_a_gpu_the_reason_is_told() -> None:
    with pytest.raises(Unseen, match="no GPU"), card("cpu"):
        pass
    with counted("cpu") as counter:
        pass
    assert (counter.mean, counter.reason) == (None, "no GPU")


def test_without_the_library_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    with pytest.raises(Unseen, match="NVML does not answer: NVML Shared Library Not Found"), card("cuda:0"):
        pass


def memory_of(handle: int, version: int | None = None) -> Any:
    """Return the memory as NVML says it: in its first version the driver's own memory is used memory."""
    return SimpleNamespace(used=7 * 2**30 if version == pynvml.nvmlMemory_v2 else 8 * 2**30, total=80 * 2**30)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A library in place of NVML: one card, of which all processes together use 7 GiB."""
    calls: list[str] = []
    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: calls.append("shut down"),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": memory_of,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return calls


def engine_on(device: str, **changes: object) -> Any:
    """The parts of an engine that a sampler reads; its own figures are of less memory."""
    reading: EngineStatistics = statistics(**changes)
    entry = SimpleNamespace(pid=os.getpid(), is_afar=False)
    channel = SimpleNamespace(down_since=None)
    model = SimpleNamespace(device=device)
    return SimpleNamespace(entry=entry, description=model, statistics=lambda: reading, channel=channel)


@contextmanager
def curve_of(engine: Any) -> Iterator[memory.Curve]:
    with memory.sampled(engine) as curve:
        curve.take()
        yield curve


def test_a_gpus_memory_is_nvmls_figure_not_the_engines(library: list[str]) -> None:
    with curve_of(engine_on("cuda:0", device_bytes_in_use=3 * 2**30)) as curve:
        assert curve.take().gigabytes == 7.0
        assert curve.measured_by == "NVML"
    assert library == ["shut down"]


def test_an_old_driver_is_asked_in_the_old_way(library: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def old(handle: int, version: int | None = None) -> Any:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return memory_of(handle)

    with card("cuda:0") as seen:
        assert (seen.bytes_in_use(), seen.bytes_in_all()) == (7 * 2**30, 80 * 2**30)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", old)
        assert seen.bytes_in_use() == 8 * 2**30


def test_where_nvml_does_not_answer_the_file_says_who_was_asked() -> None:
    with curve_of(engine_on("cuda:0", device_bytes_in_use=3 * 2**30)) as curve:
        assert curve.take().gigabytes == 3.0
        assert curve.measured_by.startswith("the driver, asked by the engine (NVML does not answer")
    with curve_of(engine_on("cpu", device_bytes_in_use=None)) as curve:
        assert curve.measured_by == "the engine's accounting (no GPU)"
