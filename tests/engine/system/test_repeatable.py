"""An engine's process attends by kernels that repeat their bits."""

from __future__ import annotations

import torch

from tests.device import DEVICE
from tests.engine.desk import build_desk
from tests.families import build


def test_an_engine_attends_without_cudnn() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    build_desk(build("llama", layers=1))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.backends.cuda.math_sdp_enabled()


def test_one_query_over_long_keys_repeats_its_bits_in_buffers_of_any_capacity() -> None:
    dtype = torch.float16 if DEVICE.type == "cuda" else torch.float32
    query, keys = (torch.randn(1, 8, rows, 64, device=DEVICE, dtype=dtype) for rows in (1, 1000))
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, keys)
    for capacity in (1000, 1001, 1064, 4096):
        rows = keys.new_empty(1, 8, capacity, 64)[:, :, :1000].copy_(keys)
        for _ in range(8):
            assert torch.equal(torch.nn.functional.scaled_dot_product_attention(query, rows, rows), expected)
