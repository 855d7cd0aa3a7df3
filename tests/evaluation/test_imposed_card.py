"""A smaller card than there is, from `--capacity` to the allocator; and a GPU that is not there, refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import djinn_jupyter.cli.main as cli
from djinn_evaluation import machine as devices
from djinn_jupyter import machine
from djinn_jupyter.engine.__main__ import engine_config, parser
from djinn_jupyter.engine.process import build
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.device import LOADED_LATER, fraction_of, free_on
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link import launcher
from tests.engine.memory.weights.saved import desk_from, save
from tests.threads import one_thread

GIB = 1 << 30
CARD, TAKEN = 140 * GIB, 3 * GIB
Patch = pytest.MonkeyPatch


class Started(Exception):
    """An engine would have been started; its arguments."""


@pytest.fixture
def a_gpu(monkeypatch: Patch, tmp_path_factory: pytest.TempPathFactory) -> None:
    devices_of_linux = tmp_path_factory.mktemp("dev")
    (devices_of_linux / "nvidia0").touch()
    monkeypatch.setattr(machine, "DEV", devices_of_linux)
    for name in ("CUDA_VISIBLE_DEVICES", "DJINN_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (CARD - TAKEN, CARD))


def arguments_of(monkeypatch: Patch, folder: Path, *flags: str) -> list[str]:
    """Return the arguments with which `djinn experiment pressure` starts its engine."""

    def start(identity: Any, arguments: list[str], **_: Any) -> Any:
        raise Started(arguments)

    monkeypatch.setattr(launcher, "start", start)
    with pytest.raises(Started) as caught:
        cli.main(["experiment", "pressure", "--profile", "small", "--output-dir", str(folder), *flags])
    arguments: list[str] = caught.value.args[0]
    return arguments


@pytest.mark.usefixtures("a_gpu")
def test_a_capacity_reaches_the_allocator_before_the_model_is_loaded(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ["a card", "another"])
    arguments = arguments_of(monkeypatch, tmp_path, "--capacity", "80GiB", "--gpu-index", "1")
    held: list[tuple[float, Any]] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: held.append(given))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    def loads(config: Any, progress: Any) -> Any:
        raise Started(list(held))

    monkeypatch.setattr(build, "foresee", loads)
    config = engine_config(parser().parse_args(arguments))
    with pytest.raises(Started) as caught:
        build.open_engine(config)
    ((fraction, device),) = caught.value.args[0]
    assert (fraction, device) == ((77 * GIB - LOADED_LATER) / (140 * GIB), torch.device("cuda", 1))


def test_a_limit_that_no_card_is_so_small_for_bounds_weights_and_pages(monkeypatch: Patch, tmp_path: Path) -> None:
    """The small profile's: CUDA's context alone fills a card of a dozen MiB, which would be refused on every GPU."""
    config = engine_config(parser().parse_args(arguments_of(monkeypatch, tmp_path)))
    assert (config.card_memory, config.device_memory) == (None, int(0.181 * GIB))
    config = engine_config(parser().parse_args(arguments_of(monkeypatch, tmp_path, "--capacity", "80GiB")))
    assert (config.card_memory, config.device_memory) == (80 * GIB, None)


@pytest.mark.usefixtures("a_gpu")
def test_nothing_is_asked_of_a_gpu_that_is_not_ours(monkeypatch: Patch) -> None:
    """CUDA sets up half a gigabyte on the GPU that is current when it is asked for memory without a name of one."""
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append("memory") or (CARD - TAKEN, CARD))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *_: asked.append("fraction"))

    def loads(config: Any, progress: Any) -> Any:
        raise Started

    monkeypatch.setattr(build, "foresee", loads)
    for device, first in (("cuda:1", torch.device("cuda", 1)), (None, torch.device("cuda", 0)), ("cpu", None)):
        asked.clear()
        with pytest.raises(Started):
            build.open_engine(EngineConfig(model="demo", device=device, card_memory=80 * GIB))
        assert asked == ([] if first is None else [first, "memory", "fraction"])


def test_no_capacity_imposes_nothing(monkeypatch: Patch, tmp_path: Path) -> None:
    arguments = arguments_of(monkeypatch, tmp_path, "--set", "hardware.vram_limit_gb=null")
    assert engine_config(parser().parse_args(arguments)).card_memory is None


@given(st.integers(1, CARD), st.integers(0, CARD - 1))
def test_what_others_take_and_what_is_left_make_the_imposed_card(card: int, taken: int) -> None:
    if card <= taken:
        with pytest.raises(UsageError, match="would be full"):
            fraction_of(card, total=CARD, taken=taken)
    else:
        assert fraction_of(card, total=CARD, taken=taken) * CARD + taken == pytest.approx(card)


def test_a_larger_card_cannot_be_imposed() -> None:
    with pytest.raises(UsageError, match=r"A card of 141 GiB cannot be imposed: the one there is has 140 GiB"):
        fraction_of(141 * GIB, total=CARD, taken=0)


@pytest.mark.usefixtures("a_gpu")
def test_what_is_free_is_free_on_the_imposed_card() -> None:
    where = torch.device("cuda")
    assert free_on(where, None) == CARD - TAKEN
    assert free_on(where, 80 * GIB) == 77 * GIB
    assert free_on(where, GIB) == 0


def test_on_the_cpu_the_books_hold_to_it(tmp_path: Path) -> None:
    with one_thread():
        engine = desk_from(save(tmp_path / "llama"), device="cpu", card_memory=1 << 20).engine
    assert engine.slabs[0].statistics().bytes_limit == (1 << 20) - engine.weights.statistics().bytes_total


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        ([], "There is no GPU 7: torch finds none here; without an index the CPU computes."),
        (["H200", "A100"], "There is no GPU 7: there are 0 (H200), 1 (A100)."),
    ],
)
@pytest.mark.parametrize(
    "asked",
    [("whitebox", "--gpu-index=7"), ("pressure", "--gpu-index=7"), ("validation", "--set=hardware.gpu_device=7")],
    ids=lambda asked: asked[0],
)
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_started(
    asked: tuple[str, str],
    there: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: there)
    name, flag = asked
    assert cli.main(["experiment", name, "--profile", "small", "--output-dir", str(tmp_path / "out"), flag]) == 1
    assert capsys.readouterr().err == f"djinn: {sentence}\n"
    assert not (tmp_path / "out").exists()


def test_the_gpus_of_this_machine_are_those_that_torch_finds() -> None:
    assert len(devices.gpus()) == torch.cuda.device_count()
    assert devices.device_of(None) is None
