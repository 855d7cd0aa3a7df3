"""DeepSpeed's side against the version that is installed: its signatures, its keys, and on the CPU its tokens.
`make sides` installs it; on a GPU it has not run."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import pydantic
import pytest
import torch

from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.offloads import ZeroInference, configuration

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not here: make sides"),
]
BUDGET = 4096


def test_its_functions_take_what_they_are_called_with() -> None:
    import deepspeed

    inspect.signature(deepspeed.init_distributed).bind(auto_mpi_discovery=False)
    inspect.signature(deepspeed.initialize).bind(model=torch.nn.Identity(), config={})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_knows_every_key_and_means_by_it_what_is_meant(dtype: torch.dtype) -> None:
    """Its own classes read the keys; they refuse one that they do not know."""
    from deepspeed.runtime import precision_config as precision
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    asked = configuration(dtype, BUDGET, "cpu")
    given: dict[str, Any] = asked["zero_optimization"]
    zero = DeepSpeedZeroConfig(**given)
    assert (zero.stage, zero.offload_param.device, zero.offload_param.pin_memory) == (3, "cpu", True)
    assert zero.max_live_parameters * dtype.itemsize == BUDGET
    assert zero.param_persistence_threshold == 0
    with pytest.raises(pydantic.ValidationError):
        DeepSpeedZeroConfig(**given, stage3_no_such_key=0)
    assert precision.get_float16_config(asked).enabled is (dtype == torch.float16)
    assert precision.get_bfloat16_config(asked).enabled is (dtype == torch.bfloat16)


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_on_the_cpu_it_generates_what_plain_transformers_does(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are partitioned and gathered layer by layer there too; only the copies to a GPU are not. It compiles
    its operators first, in a folder without another run's lock."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("compiled")))
    side, asked = ZeroInference(), weights.ModelAsked(model="demo", dtype="float32", threads=1)
    side.device = torch.device("cpu")
    tokens, plain = [1, 2, 3, 4, 5], asked.read()
    expected, _ = weights.greedy(plain, tokens, 6, side.device)
    side.take(asked.read(), BUDGET, "cpu")
    assert not any(parameter.numel() for parameter in side.model.parameters()), "the weights are partitioned"
    assert side.generate(tokens, 6)["tokens"] == expected
