"""Sleep: the weights leave, the sessions stay, and the weights come back with the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.memory.weights import host_weights, residence
from djinn_jupyter.engine.memory.weights.host_weights import placeholder, total_bytes, weights_of
from djinn_jupyter.engine.memory.weights.residence import IdleSleep, ResidentWeights
from djinn_jupyter.errors import IllegalMove, StorageFailed, UsageError
from djinn_jupyter.settings import SettledOptions
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.device import DEVICE
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.memory.weights.saved import desk_from, save
from tests.families import build

PROMPT = tokens(20)


def sleep(desk: Desk) -> told.WeightsMoved:
    return desk.ask(ask.Sleep())


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return desk_from(save(tmp_path_factory.mktemp("llama")))


# gpt2 ties its head to its embedding, mixtral's experts are fused from many tensors of the file; under bfloat16 every
# weight is another one than in the file.
@pytest.mark.parametrize(("family", "dtype"), [("gpt2", None), ("mixtral", None), ("llama", "bf16")])
def test_what_comes_back_is_the_same_bits(tmp_path: Path, family: str, dtype: str | None) -> None:
    desk = desk_from(save(tmp_path / family, family), dtype=dtype)
    before = {name: value.clone() for name, value in desk.engine.model.state_dict().items()}
    desk.open()
    undisturbed = desk.outcome(desk.run(PROMPT, 5))
    sleep(desk)
    assert desk.ask(ask.Wake()).seconds > 0
    for name, value in desk.engine.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    sleep(desk)
    assert desk.outcome(desk.run(PROMPT, 5)) == undisturbed


def test_a_stopped_session_sleeps_through_and_wakes_by_its_resume(desk: Desk) -> None:
    desk.open()
    undisturbed = desk.outcome(desk.run(PROMPT, 5))
    desk.stop_at("resid_post.3")
    desk.run(PROMPT, 5)
    stopped = desk.value()
    asleep = sleep(desk).weights
    assert asleep.residency == "asleep"
    assert asleep.bytes_on_device < asleep.bytes_total / 50
    assert torch.equal(desk.value(), stopped), "the stop itself needs no weights"
    assert desk.engine.weights.asleep
    assert desk.outcome(desk.resume(free=True)) == undisturbed
    awake = desk.engine.weights.statistics()
    assert (awake.residency, awake.bytes_on_device) == ("resident", awake.bytes_total)
    desk.close_all()


def test_a_look_below_the_stop_wakes(desk: Desk) -> None:
    desk.open()
    desk.stop_at("resid_post.3")
    desk.run(PROMPT, 5)
    below = desk.value("resid_post.1")
    sleep(desk)
    assert torch.equal(desk.value("resid_post.1"), below)
    assert not desk.engine.weights.asleep
    desk.close_all()


def test_sleeping_twice_and_waking_twice_moves_nothing(desk: Desk) -> None:
    sleep(desk)
    assert sleep(desk).seconds == 0.0
    desk.ask(ask.Wake())
    moved = desk.engine.weights.statistics().bytes_moved
    assert desk.ask(ask.Wake()) == told.WeightsMoved(weights=desk.engine.weights.statistics(), seconds=0.0)
    assert desk.engine.weights.statistics().bytes_moved == moved


def test_no_sleep_while_a_session_runs(desk: Desk) -> None:
    desk.open()
    replies: list[Any] = []
    desk.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=6, ignore_eos=True), replies)
    desk.engine.tick()
    with pytest.raises(IllegalMove, match="'a' is running"):
        sleep(desk)
    assert not desk.engine.weights.asleep
    desk.settle()
    assert isinstance(replies[0], told.Finished)
    desk.close_all()


def test_what_cannot_come_back_does_not_leave() -> None:
    """Weights that were given in memory can leave a GPU for the host, but not the host."""
    desk = build_desk(build("llama"))
    desk.open()
    undisturbed = desk.outcome(desk.run(PROMPT, 2))
    if DEVICE.type == "cpu":
        with pytest.raises(UsageError, match="cannot be loaded again"):
            sleep(desk)
    else:
        assert sleep(desk).weights.residency == "asleep"
    assert desk.outcome(desk.run(PROMPT, 2)) == undisturbed


def test_files_that_changed_meanwhile_are_refused_and_the_stop_stays(tmp_path: Path) -> None:
    """On the CPU: weights of a GPU come back from the host's memory, and no file is read."""
    desk = desk_from(save(tmp_path / "model"), device="cpu")
    desk.open()
    undisturbed = desk.outcome(desk.run(PROMPT, 3))
    desk.stop_at("resid_post.3")
    desk.run(PROMPT, 3)
    sleep(desk)
    save(tmp_path / "other", seed=5)
    file = tmp_path / "model" / "model.safetensors"
    kept = file.rename(tmp_path / "kept")
    (tmp_path / "other" / "model.safetensors").rename(file)
    with pytest.raises(StorageFailed, match="not what it was"):
        desk.resume()
    assert desk.session().state == "paused"
    assert desk.engine.weights.asleep
    kept.rename(file)
    assert desk.outcome(desk.resume(free=True)) == undisturbed


def test_whoever_computes_with_what_is_away_gets_no_number() -> None:
    linear = torch.nn.Linear(4, 3).requires_grad_(False)
    for weight in weights_of(linear):
        weight.leave()
    assert linear(torch.ones(2, 4)).isnan().all()
    assert linear.weight.shape == (3, 4)
    assert linear.weight.untyped_storage().nbytes() == 4
    assert placeholder(torch.zeros(2, dtype=torch.int8)).tolist() == [-128, -128]


def test_tied_parameters_are_one_weight() -> None:
    model = build("gpt2")
    own = {p.data_ptr(): p.nbytes for p in model.parameters()}
    assert total_bytes(weights_of(model)) == sum(own.values())
    assert len(weights_of(model)) == len(own)


def test_they_sleep_by_themselves_after_so_long_without_work(desk: Desk) -> None:
    now, options = 0.0, SettledOptions(sleep_seconds=60.0)
    idle_sleep = IdleSleep(desk.engine.weights, options, torch.device("cpu"), clock=lambda: now)
    for now, busy, asleep in [(50.0, False, False), (55.0, True, False), (114.0, False, False), (116.0, False, True)]:
        idle_sleep.observe(busy)
        assert desk.engine.weights.asleep is asleep, now
    desk.ask(ask.Wake())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_by_itself_only_where_device_memory_is_not_the_hosts(desk: Desk, device: str) -> None:
    now = 0.0
    idle_sleep = IdleSleep(desk.engine.weights, SettledOptions(), torch.device(device), clock=lambda: now)
    now = 10_000.0
    idle_sleep.observe(busy=False)
    assert desk.engine.weights.asleep is (device == "cuda")
    desk.ask(ask.Wake())


def test_weights_that_the_host_has_no_room_for_stay_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quarter of an hour without work the engine would otherwise be ended by its own sleep."""
    model = build("llama")
    weights = ResidentWeights(model, torch.device("cuda"))
    for module in (host_weights, residence):
        monkeypatch.setattr(module, "main_memory", lambda: SimpleNamespace(available=weights.total // 2))
    with pytest.raises(UsageError, match=r"The weights would take .* of host memory, of which .* are free: they stay"):
        weights.sleep()
    now = 0.0
    idle_sleep = IdleSleep(weights, SettledOptions(), torch.device("cuda"), clock=lambda: now)
    now = 10_000.0
    idle_sleep.observe(busy=False)
    assert not weights.asleep
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


MEASURE = """
import json, sys
import torch
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.memory.weights.residence import ResidentWeights

def held():
    lines = [line.split() for line in open("/proc/self/status")]
    return sum(int(words[1]) * 1024 for words in lines if words[0] in ("RssAnon:", "RssFile:"))

def logits():
    with torch.inference_mode():
        return model(torch.tensor([[5, 6, 7]])).logits

measured = []
for drawn in (False, True):
    config = EngineConfig(model=sys.argv[1], device="cpu", random_weights=drawn)
    model = load_model(config).model
    weights = ResidentWeights(model, torch.device("cpu"), lambda: load_model(config).model)
    before, awake = logits(), held()
    weights.sleep()
    asleep = held()
    weights.wake()
    same = torch.equal(logits(), before)
    measured.append([awake, asleep, held(), weights.total, same])
print(json.dumps(measured))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel by /proc")
def test_the_process_really_gives_the_memory_back(tmp_path: Path) -> None:
    """It holds for weights that are mapped from files, and for weights that were drawn."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=4, vocab_size=128
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    program = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4])
    for awake, asleep, again, total, same in json.loads(done.stdout.splitlines()[-1]):
        assert total > 64 * 2**20
        assert awake - asleep > 0.9 * total
        assert again - asleep > 0.9 * total
        assert same
