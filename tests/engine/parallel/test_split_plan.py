"""What cannot be split is refused in one sentence, before a rank has its part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from djinn_jupyter.engine.process import build as split
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import EngineStartFailed, ModelDoesNotFit, ModelRefused, UsageError
from djinn_jupyter.parallel.cutting import cut, split_plan
from tests.engine.parallel.ranked import saved
from tests.families import build

LAYERS = ("model.layers.0", "model.layers.1")


def test_the_plan_is_that_of_transformers_for_the_matrices_of_layers() -> None:
    plan = split_plan(build("llama", layers=2), LAYERS, 2)
    assert [path for path in plan.columns if path.startswith(LAYERS[1])] == [
        f"{LAYERS[1]}.{name}" for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    ] + [f"{LAYERS[1]}.mlp.{name}" for name in ("gate_proj", "up_proj")]
    assert plan.rows[-2:] == (f"{LAYERS[1]}.self_attn.o_proj", f"{LAYERS[1]}.mlp.down_proj")


@pytest.mark.parametrize(
    ("family", "path", "said"),
    [
        ("gpt2", "transformer.h.0", "transformers has no plan to split its layers"),
        ("mixtral", "model.layers.0", r"its plan splits \S+ as \w+, which djinn cannot put together again"),
    ],
)
def test_a_family_without_such_a_plan(family: str, path: str, said: str) -> None:
    with pytest.raises(ModelRefused, match=f"cannot be split by --tensor-parallel: {said}.*on one device"):
        split_plan(build(family, layers=1), (path,), 2)


def test_features_that_do_not_come_out_even() -> None:
    with pytest.raises(ModelRefused, match="features, which 5 ranks cannot share out evenly"):
        split_plan(build("llama", layers=2), LAYERS, 5)


def test_the_parts_of_all_ranks_make_the_whole() -> None:
    """Columns side by side, rows as a sum."""
    whole, x = build("qwen2", layers=2), torch.randn(1, 3, 32)
    plan, parts = split_plan(whole, LAYERS, 2), [build("qwen2", layers=2) for _ in range(2)]
    for rank, model in enumerate(parts):
        cut(model, plan, rank, 2, lambda part: None)
    column, row = plan.columns[0], plan.rows[0]
    beside = torch.cat([model.get_submodule(column)(x) for model in parts], -1)
    torch.testing.assert_close(beside, whole.get_submodule(column)(x))
    halves = x.chunk(2, -1)
    summed = sum(model.get_submodule(row)(half) for model, half in zip(parts, halves, strict=True))
    torch.testing.assert_close(summed, whole.get_submodule(row)(x))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": "cuda:0,cuda:1"}, "--tensor-parallel and --devices do not go together"),
        ({"cuda_graphs": True}, "--tensor-parallel and --cuda-graphs do not go together"),
    ],
)
def test_options_that_do_not_go_with_it(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_engine(EngineConfig(model="demo", tensor_parallel=2, **options))  # type: ignore[arg-type]


def test_more_ranks_than_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert split.devices_of(torch.device("cuda", 0), 2) == ["cuda:0", "cuda:1"]
    with pytest.raises(UsageError, match="takes 2 GPUs from cuda:1 on, and this machine has 2"):
        split.devices_of(torch.device("cuda", 1), 2)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ranks", "options", "refusal", "said"),
    [
        (4, {}, ModelRefused, "2 heads of keys and values, which 4 ranks cannot share out evenly"),
        (2, {"device_memory": 1 << 10}, ModelDoesNotFit, "split it among more ranks.*split layers do not stream"),
    ],
)
def test_a_refusal_leaves_no_rank_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    options: dict[str, int],
    refusal: type[Exception],
    said: str,
) -> None:
    made: list[split.Ranks] = []

    class Remembered(split.Ranks):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            made.append(self)

    monkeypatch.setattr(split, "Ranks", Remembered)
    model = saved("llama", tmp_path / "model")
    with pytest.raises(refusal, match=said):
        open_engine(EngineConfig(model=str(model), device="cpu", tensor_parallel=ranks, **options))  # type: ignore[arg-type]
    assert len(made[0]._processes) == ranks - 1
    assert all(process.poll() is not None for process in made[0]._processes)


@pytest.mark.processes
def test_a_rank_that_ends_before_it_has_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, load = saved("llama", tmp_path / "model"), split.Ranks.load

    def loading(ranks: split.Ranks, config: EngineConfig, devices: list[str]) -> None:
        load(ranks, config, devices)
        ranks._processes[0].kill()

    monkeypatch.setattr(split.Ranks, "load", loading)
    with pytest.raises(EngineStartFailed, match=r"split: rank 1 of 2, process \d+, was killed by signal 9; see"):
        open_engine(EngineConfig(model=str(model), device="cpu", tensor_parallel=2))
