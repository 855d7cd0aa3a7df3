"""The contract in the dtypes and on the devices that the other tests leave out."""

from __future__ import annotations

import pytest
import torch

from tests.device import DEVICE
from tests.engine.desk import build_desk, tokens
from tests.engine.plain import generate, plain_of
from tests.families import build

PROMPT, NEW = tokens(14), 4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def a_stop_changes_no_bit(family: str, dtype: torch.dtype, attention: str) -> None:
    desk, plain = build_desk(build(family, dtype=dtype, attention=attention)), plain_of(family, dtype, attention)
    expected = generate(plain, PROMPT, NEW)
    desk.open()
    desk.stop_at("resid_post.4", "step == 1")
    desk.run(PROMPT, NEW)
    desk.swap_out()
    desk.edit()
    assert desk.outcome(desk.resume()) != expected
    desk.back()
    assert desk.outcome(desk.resume()) == expected


def test_an_engine_of_a_test_computes_on_the_device_of_the_run() -> None:
    desk = build_desk(build("llama"))
    assert desk.engine.forward.device == DEVICE
    assert {tensor.device for tensor in desk.engine.forward.model.parameters()} == {DEVICE}


def test_a_stop_in_float16_changes_no_bit() -> None:
    a_stop_changes_no_bit("llama", torch.float16, "sdpa")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_a_stop_changes_no_bit_on_a_gpu(family: str, dtype: torch.dtype, attention: str) -> None:
    assert DEVICE.type == "cuda"
    a_stop_changes_no_bit(family, dtype, attention)
