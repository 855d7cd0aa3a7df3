"""Kernels that give the same bits each time. Process-wide switches of torch; knows nothing of models."""

from __future__ import annotations

import torch


def leave_out_cudnn_attention() -> None:
    """Let scaled_dot_product_attention use its other kernels only, of which flash and math repeat their bits.

    cuDNN's, which torch prefers on Hopper, does not repeat them: for one query over a thousand keys in half precision,
    plain `generate` gave the same bits twice in 2 of 9 steps (H100, torch 2.11, cuDNN 9.19; docs/design.md). It also
    builds a plan for each length that is new, which takes longer than the pass.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
