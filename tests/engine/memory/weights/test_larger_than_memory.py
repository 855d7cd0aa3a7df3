"""A model larger than the memory it is allowed: the plan, the refusals, and the kernel's figures of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from djinn_jupyter.engine.memory.weights.host_weights import bytes_in_memory, raw_bytes
from djinn_jupyter.engine.memory.weights.residence import WeightSizes, place
from djinn_jupyter.engine.memory.weights.streamed import StreamedWeights
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.process.weight_plan import foresee
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import ModelDoesNotFit
from djinn_jupyter.units import spell_bytes
from tests.engine.desk import build_desk, tokens
from tests.engine.memory.weights.saved import desk_from
from tests.families import build

MIB = 1 << 20
HOUSE = Path(__file__).parents[4]
SIZES = WeightSizes(total=100 * MIB, rest=20 * MIB, layers=(10 * MIB,) * 8)


def test_the_placement_streams_as_few_layers_as_fit() -> None:
    for allowed in range(46 * MIB, 100 * MIB, MIB):
        placement = place(SIZES, allowed)
        assert placement.device_bytes <= allowed * 7 // 8 + 1
        assert placement.device_bytes + placement.page_bytes == allowed
        fewer = len(placement.streaming) - 1
        if fewer > placement.slots:
            assert placement.device_bytes + 10 * MIB > allowed - allowed // 8


def test_pages_that_need_more_than_an_eighth_get_it() -> None:
    placement = place(SIZES, 80 * MIB, pages=25 * MIB)
    assert placement.page_bytes >= 25 * MIB
    assert len(placement.streaming) > len(place(SIZES, 80 * MIB).streaming)
    assert placement.enough == 125 * MIB
    with pytest.raises(ModelDoesNotFit, match=r"with 25\.0 MiB for a few pages 65\.0 MiB in all"):
        place(SIZES, 64 * MIB, pages=25 * MIB)


def test_streaming_layers_are_spread_among_those_that_stay() -> None:
    placement = place(SIZES, 80 * MIB)
    assert len(placement.streaming) == 5
    gaps = [after - before for before, after in zip(placement.streaming, placement.streaming[1:], strict=False)]
    assert set(gaps) <= {1, 2}


@pytest.mark.parametrize(("layers", "allowed"), [(8, 80), (10, 90), (10, 70), (20, 190), (20, 120), (20, 230)])
def test_the_end_of_a_pass_is_a_pause_for_the_link_like_a_layer_that_stays(layers: int, allowed: int) -> None:
    """Beside the head a layer that stays gives the link more time than two slots can use."""
    sizes = WeightSizes(total=(20 + 10 * layers) * MIB, rest=20 * MIB, layers=(10 * MIB,) * layers)
    streaming = place(sizes, allowed * MIB).streaming
    spelled = "".join("s" if layer in streaming else "|" for layer in range(layers))
    groups = [len(group) for group in spelled.split("|")]
    assert sum(groups) == len(streaming) < layers
    assert max(groups) - min(groups) <= 1


def test_what_cannot_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ModelDoesNotFit) as refused:
        place(SIZES, 45 * MIB)
    text = str(refused.value)
    for part in ("100 MiB of weights", "20.0 MiB outside the layers", "2 slots take 20.0 MiB", "45.7 MiB in all"):
        assert part in text
    assert "\n" not in text


def test_the_plan_is_told_in_two_lines() -> None:
    lines = list(place(SIZES, 80 * MIB, link=5e9).lines())
    assert lines == [
        "100 MiB of weights, 80.0 MiB allowed: 3 of 8 layers stay, with embeddings, norms and head; "
        "5 layers stream through 2 slots, 50.0 MiB in each pass; 10.0 MiB are left for pages",
        "at the measured 5.00 GB/s a token takes at least 10.5 ms; with --device-memory 114.286MiB nothing would "
        "stream",
    ]
    assert len(list(place(SIZES, 80 * MIB).lines())) == 1


def test_weights_that_leave_no_room_for_pages_are_refused() -> None:
    model = build("llama")
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    with pytest.raises(ModelDoesNotFit, match=r"4 pages of each kind take 64\.0 KiB; allow more"):
        build_desk(model, device_memory=weights + 3 * 16 * 1024)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama whose layers have a megabyte each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=1280, num_hidden_layers=12, num_attention_heads=4, vocab_size=128
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="4MB")
    return folder


def test_what_is_told_before_loading_is_what_is_done(wide: Path) -> None:
    told: list[str] = []
    desk = desk_from(wide, told.append, device="cpu", device_memory=8 * MIB)
    loading = next(number for number, line in enumerate(told) if line.startswith("loading"))
    assert "layers stream through 2 slots" in told[loading - 2]
    assert "a token takes at least" in told[loading - 1]
    assert sum("stream through" in line for line in told) == 1, "the estimate was right, so it is not told again"
    weights = desk.engine.weights
    assert isinstance(weights, StreamedWeights)
    held = weights.statistics()
    assert held.bytes_held_on_host == 0, "what streams is mapped from the file"
    pages = sum(slab.budget.limit for slab in desk.engine.slabs)
    assert held.bytes_on_device + pages <= 8 * MIB
    resident = desk_from(wide, device="cpu")
    for each in (desk, resident):
        each.open()
    assert desk.outcome(desk.run(tokens(30), 5)) == resident.outcome(resident.run(tokens(30), 5))
    assert desk.engine.description.weight_bytes == resident.engine.description.weight_bytes == held.bytes_total


def test_weights_that_were_converted_are_told_to_be_in_host_memory(wide: Path) -> None:
    """Another dtype than the file's: no piece of the file can be mapped; as it was saved, all of it is."""
    told: list[str] = []
    desk = desk_from(wide, told.append, device="cpu", device_memory=4 * MIB, dtype="bfloat16")
    held = desk.engine.weights.statistics()
    converted = next(line for line in told if "converted or drawn" in line)
    assert converted.startswith(f"{spell_bytes(held.bytes_streamed_per_pass)} of what streams")
    assert held.bytes_held_on_host == held.bytes_streamed_per_pass


def test_a_mixture_saved_as_it_is_served_is_mapped(tmp_path: Path) -> None:
    """Its usual files hold the experts one by one, and loading fuses them; those that the note names need no fusing."""
    model = build("mixtral")
    model.save_pretrained(tmp_path / "usual")
    model.save_pretrained(tmp_path / "served", save_original_format=False)
    usual, served = (load_model(EngineConfig(model=str(tmp_path / kind))).model for kind in ("usual", "served"))
    held = sum(p.nbytes for name, p in usual.named_parameters() if "experts" in name)
    assert bytes_in_memory(map(raw_bytes, usual.parameters())) == held > 0
    assert bytes_in_memory(map(raw_bytes, served.parameters())) == 0
    assert all(torch.equal(one, other) for one, other in zip(usual.parameters(), served.parameters(), strict=True))


def test_it_is_refused_before_anything_is_loaded(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((wide / "config.json").read_text())
    with pytest.raises(ModelDoesNotFit, match="Even if all its 12 layers stream"):
        foresee(EngineConfig(model=str(tmp_path), device="cpu", device_memory=2 * MIB), lambda line: None)


MEASURE = """
import json, sys, threading
import torch
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.process.weight_plan import foresee, settle

def anonymous():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon:"))

def run(folder, allowed):
    config = EngineConfig(model=folder, device="cpu", device_memory=allowed)
    foreseen = foresee(config, lambda line: None)
    loaded = load_model(config)
    weights = settle(config, loaded, foreseen=foreseen).weights
    made = loaded.model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, pad_token_id=0,
                                 output_logits=True, return_dict_in_generate=True)
    return weights.statistics(), [made.sequences.tolist(), made.logits[-1].tolist()]

def watch():
    while not over.wait(0.002):
        seen.append(anonymous())

small, large, allowed = sys.argv[1], sys.argv[2], int(sys.argv[3])
run(small, None)  # what the libraries take when they are first used
seen, over = [anonymous()], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
streamed, came = run(large, allowed)
over.set()
watcher.join()
same = came == run(large, None)[1]
print(json.dumps([seen[0], max(seen), streamed.bytes_total, streamed.bytes_streamed_per_pass, same]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel by /proc")
@pytest.mark.parametrize(
    ("intermediate", "allowed"), [(3072, 40 * MIB), pytest.param(12288, 150 * MIB, marks=pytest.mark.slow)]
)
def test_the_anonymous_memory_stays_below_the_models_size(
    wide: Path, tmp_path: Path, intermediate: int, allowed: int
) -> None:
    """Loading and running add little more than the allowed memory, a third of the model; and where the model is larger
    than torch and the interpreter, all that the process has is below the model's size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=intermediate, num_hidden_layers=12, num_attention_heads=4, vocab_size=128
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path, max_shard_size="200MB")
    command = [sys.executable, "-c", MEASURE, str(wide), str(tmp_path), str(allowed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HOUSE)
    before, peak, total, per_pass, same = json.loads(done.stdout.splitlines()[-1])
    assert per_pass > total - allowed
    assert peak - before < total / 2
    assert peak < total or total < 400 * MIB
    assert same
