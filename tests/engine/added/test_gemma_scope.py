"""Modules of Gemma Scope 2 on a Gemma 3 whose weights are tiny and random."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from tests import gemma_scopes, saes
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.families import build
from tests.gemma_scopes import BEFORE_MLP, BEHIND_MLP
from tests.threads import one_thread

LINE = [9, 8, 7, 21, 9]


@pytest.fixture(scope="module")
def engine() -> Iterator[RemoteEngine]:
    with one_thread(), reached(build_desk(build("gemma3_text"))) as [engine]:
        yield engine


def test_an_sae_reads_the_point_that_its_files_name(engine: RemoteEngine, tmp_path: Path) -> None:
    session = engine.session("main", fresh=True)
    session.breakpoint("resid_post.2")
    session.run(LINE, max_new_tokens=1)
    residual = torch.from_numpy(np.array(session.inspect().value))
    tensors = saes.drawn(residual.shape[1], "jumprelu")
    made = engine.add_module("sae", gemma_scopes.saved(tmp_path / "g", tensors, read="model.layers.2.output"))
    try:
        assert (made.site, made.at, made.activation) == ("sae.2", "resid_post.2", "jumprelu")
        features = saes.encode(residual, tensors, "jumprelu", apply_b_dec_to_input=False)
        assert torch.allclose(torch.from_numpy(np.array(session.inspect("sae.2").value)), features, atol=1e-5)
        assert dj.splice(engine, "sae.2", [LINE]).values.shape[0] == 3
    finally:
        session.close()
        engine.remove_module("sae")


def test_a_transcoder_writes_behind_the_norm_as_its_files_say(engine: RemoteEngine, tmp_path: Path) -> None:
    width = 32
    tensors, skip_IO = saes.drawn(width, "jumprelu"), gemma_scopes.skip(width)
    folder = gemma_scopes.saved(
        tmp_path / "g", tensors, read=BEFORE_MLP, skip_IO=skip_IO, hf_hook_point_out=BEHIND_MLP, affine_connection=True
    )
    made = engine.add_module("tc", folder)
    try:
        assert (made.at, made.writes, made.why_not_edited) == ("mlp_in.1", "mlp_out_post.1", None)
        spliced = dj.splice(engine, "tc.1", [LINE])
    finally:
        engine.remove_module("tc")
    hooks = {"hook_name": "mlp_in.1", "hook_name_out": "blocks.1.hook_mlp_out"}
    same = saes.saved(tmp_path / "same", {**tensors, "W_skip": skip_IO.T}, "jumprelu_skip_transcoder", **hooks)
    engine.add_module("tc", same)
    try:
        assert np.array_equal(dj.splice(engine, "tc.1", [LINE]).values, spliced.values)
    finally:
        engine.remove_module("tc")


def test_one_of_another_width_or_shape_is_refused(engine: RemoteEngine, tmp_path: Path) -> None:
    tensors = saes.drawn(48, "jumprelu")
    with pytest.raises(UsageError, match=r"The module reads 48 numbers at each position, and resid_post\.2 has 32"):
        engine.add_module("sae", gemma_scopes.saved(tmp_path / "g", tensors, read="model.layers.2.output"))
    tensors = saes.drawn(32, "jumprelu")
    tensors["w_more"] = torch.zeros(3)
    with pytest.raises(UsageError, match="w_more"):
        engine.add_module("sae", gemma_scopes.saved(tmp_path / "h", tensors, read="model.layers.2.output"))
    assert engine.added_modules() == ()
