"""The head that a lens is tuned by: found by the logits that it makes, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.training.calls import unembedding_of
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.families import build
from tests.threads import one_thread

PROMPTS = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5), (4, 4, 9)]


@pytest.mark.parametrize(("family", "norm"), [("llama", "rms"), ("gpt2", "layer")])
@pytest.mark.parametrize("positions", [None, (-2, -1)])
def test_the_head_of_a_family_makes_its_logits(
    family: str, norm: str, positions: tuple[int, ...] | None, tmp_path: Path
) -> None:
    with one_thread(), reached(build_desk(build(family, layers=2))) as [engine]:
        acts = engine.collect(PROMPTS, ["resid_post.0", "resid_post.1"], to=tmp_path / "acts", positions=positions)
        head = unembedding_of(engine, acts, "resid_post.1")
        assert head.norm == norm
        session = engine.session("main", fresh=True)
        session.run(PROMPTS[0], max_new_tokens=0)
        rows = np.asarray(acts["resid_post.1"][0]).reshape(-1, engine.description.hidden_size)
        own = session.all_logits()[-len(rows) :]
        assert np.allclose(head.logits(rows.astype("f8")), own, atol=2e-3 * own.std())


@pytest.mark.usefixtures("trains_here")
def test_a_lens_is_trained_and_is_a_site_where_logits_are_made_of_its_residual(tmp_path: Path) -> None:
    with one_thread(), reached(build_desk(build("llama", layers=2))) as [engine]:
        acts = engine.collect(PROMPTS, ["resid_post.0", "resid_post.1"], to=tmp_path / "acts")
        lens = dj.train_tuned_lens(engine, acts, site="resid_post.0", to=tmp_path / "lens", steps=60, held_out=0)
        assert lens.figures["divergence"] < lens.figures["divergence_of_logit_lens"]
        assert "head" not in lens.provenance["training"]
        module = engine.add_module("tuned", lens.folder)
        assert (module.site, module.kind) == ("tuned.0", "tuned_lens")
        with pytest.raises(UsageError, match=r"are not made from resid_post\.0 of this collection by a norm and W_U"):
            unembedding_of(engine, acts, "resid_post.0")
        alone = engine.collect(PROMPTS, "resid_post.0", to=tmp_path / "alone")
        with pytest.raises(UsageError, match=r"The collection has no resid_post\.1"):
            dj.train_tuned_lens(engine, alone, site="resid_post.0", to=tmp_path / "lens")
