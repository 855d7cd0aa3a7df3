"""Swap, checkpoint, restore, sleep and the views by layer, typed into a real kernel on a real engine."""

from __future__ import annotations

import pytest

from tests.kernel.test_real_kernel import Start

pytestmark = pytest.mark.processes


def test_a_session_leaves_is_kept_restored_and_ends_as_if_it_had_never_left(kernels: Start) -> None:
    kernel = kernels("one.ipynb")
    kernel.do("%load_ext djinn_jupyter")
    kernel.do("%djinn_load demo --fresh")

    def said(cell: str) -> str:
        text = "".join(kernel.do(cell))
        assert "Error" not in text, text
        return text

    plain = said("%djinn_run The capital of France is")
    said("%djinn_break 4 --when step == 0")
    said("%djinn_run The capital of France is")
    assert "Paris" in said('%djinn_lens --layers --token " Paris"')
    assert "norm of each head" in said("%djinn_inspect z.2")
    assert "moved" in said("%djinn_swap out")
    assert "host" in said("%djinn_sessions")
    assert "swapped out to host" in said("%djinn_status")
    assert "checkpoint noon saved: 5 tokens, stopped at resid_post.4" in said("%djinn_checkpoint noon --replace")
    assert "left the device" in said("%djinn_sleep")
    resumed = said("%djinn_resume")
    assert resumed.splitlines()[1] == plain.splitlines()[1]
    assert "restored from noon" in said("%djinn_restore noon --as other --use")
    assert "relative distance by layer" in said("%djinn_restore noon --session one\n%djinn_diff one --layers")
    assert said("%djinn_resume").splitlines()[1] == plain.splitlines()[1]
    assert "noon" in said("%djinn_checkpoint")
    assert said("%djinn_checkpoint noon --drop") == "checkpoint noon deleted\n"
    assert "memory of demo" in said("%djinn_vram")
    assert "other closed" in said("%djinn_close other")
