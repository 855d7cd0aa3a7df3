"""The features of an added SAE are those of the papers' formulas, at a stop, in a watch and in a condition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import InvalidCondition, UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.sites import parse_site
from tests import saes
from tests.engine.added.adding import add, opened, remove
from tests.engine.desk import Desk, tokens

PROMPT = tokens(12)
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("standard", {}),
    ("standard", {"apply_b_dec_to_input": False}),
    ("standard", {"normalize_activations": "layer_norm"}),
    ("standard", {"normalize_activations": "constant_norm_rescale"}),
    ("jumprelu", {"apply_b_dec_to_input": False}),
    ("topk", {"k": 5}),
    ("topk", {"k": 5, "rescale_acts_by_decoder_norm": True}),
    ("gated", {}),
]


@pytest.fixture
def desk(llama: Desk) -> Iterator[Desk]:
    yield from opened(llama)


def width(desk: Desk) -> int:
    return desk.engine.anatomy.hidden_size


@pytest.mark.parametrize(("architecture", "cfg"), FORMS, ids=str)
def test_features_are_those_of_the_papers(desk: Desk, tmp_path: Path, architecture: str, cfg: dict[str, Any]) -> None:
    tensors = saes.drawn(width(desk), architecture)
    add(desk, saes.saved(tmp_path, tensors, architecture, **cfg))
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    features, plain = desk.value("sae.4"), saes.encode(desk.value("resid_post.4"), tensors, architecture, **cfg)
    assert features.shape == (len(PROMPT), saes.FEATURES)
    assert 0 < (plain > 0).sum() < plain.numel()
    torch.testing.assert_close(features, plain, rtol=1e-4, atol=1e-5)
    assert torch.equal(desk.value("sae.4[17,3]"), features[:, [17, 3]])


def test_a_watch_records_one_feature_of_each_pass(desk: Desk, tmp_path: Path) -> None:
    tensors = saes.drawn(width(desk))
    add(desk, saes.saved(tmp_path, tensors))
    for site in ("resid_post.4", "sae.4[17]"):
        desk.ask(ask.Watch(session="a", site=site))
    desk.run(PROMPT, 3)
    seen = {
        site: [to_tensor(one) for one in desk.ask(ask.ReadWatch(session="a", site=site)).values]
        for site in ("resid_post.4", "sae.4[17]")
    }
    assert [len(one) for one in seen["sae.4[17]"]] == [12, 1, 1]
    for features, residuals in zip(seen["sae.4[17]"], seen["resid_post.4"], strict=True):
        torch.testing.assert_close(features, saes.encode(residuals, tensors)[:, [17]], rtol=1e-4, atol=1e-5)


def test_a_breakpoint_stops_at_the_first_position_of_which_its_condition_holds(desk: Desk, tmp_path: Path) -> None:
    tensors = saes.drawn(width(desk))
    add(desk, saes.saved(tmp_path, tensors))
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    plain = saes.encode(desk.value(), tensors)[:, 17]
    desk.open()
    least = float(plain.sort().values[-2:].mean())
    desk.stop_at("sae.4[17]", f"value > {least}")
    stop = desk.run(PROMPT)
    assert (stop.site, stop.matched, stop.axes) == ("sae.4[17]", int(plain.argmax()), "T F")
    desk.open()
    desk.stop_at("sae.4[17]", f"value > {float(plain.max()) + 1}")
    assert not hasattr(desk.run(PROMPT, 1), "matched")


@pytest.mark.parametrize("site", ["sae.4", "sae.4[17]", "sae.4[3,17]"])
def test_a_stop_that_goes_on_unedited_has_the_bits_of_a_run_without(desk: Desk, tmp_path: Path, site: str) -> None:
    alone = desk.outcome(desk.run(PROMPT))
    add(desk, saes.saved(tmp_path, saes.drawn(width(desk))))
    desk.open()
    desk.stop_at(site)
    stop = desk.run(PROMPT)
    while hasattr(stop, "site"):
        stop = desk.resume()
    assert desk.outcome(stop) == alone


@pytest.mark.parametrize(("architecture", "cfg"), FORMS, ids=str)
def test_the_numbers_of_a_feature_have_the_bits_of_its_tensor(
    desk: Desk, tmp_path: Path, architecture: str, cfg: dict[str, Any]
) -> None:
    tensors = saes.drawn(width(desk), architecture)
    if architecture == "jumprelu":
        tensors["threshold"][17] = -0.5
    add(desk, saes.saved(tmp_path, tensors, architecture, **cfg))
    tap = desk.engine.runtime.resolve(parse_site("sae.4"))
    raw = torch.randn(1, 12, width(desk), generator=torch.Generator().manual_seed(1)).to(desk.engine.forward.device)
    raw[0, 3] = torch.nan
    for rows in (raw, raw[:, 3:4], raw[:, 4:5]):
        for feature in (3, 17):
            numbers, tensor = tap.reading(rows).numbers((feature,)), tap.reading(rows)((feature,))
            assert torch.equal(torch.tensor(numbers).nan_to_num(-1), tensor.cpu().flatten().nan_to_num(-1))


def test_a_condition_computes_the_row_of_its_feature_and_no_other(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from djinn_jupyter.modules.engine import arithmetic

    add(desk, saes.saved(tmp_path, saes.drawn(width(desk))))
    rows: list[int] = []
    given: list[int] = []
    active, encoded = arithmetic.Dictionary._active, arithmetic.Dictionary._given
    monkeypatch.setattr(
        arithmetic.Dictionary, "_active", lambda own, of, x: (rows.append(len(of.bias_m)), active(own, of, x))[1]
    )
    monkeypatch.setattr(arithmetic.Dictionary, "_given", lambda own, x: (given.append(len(x)), encoded(own, x))[1])
    desk.stop_at("sae.4[17]", "value > 1e9")
    desk.stop_at("sae.4[17]", "norm > 1e9")
    desk.stop_at("sae.4[18]", "value > 1e9")
    desk.ask(ask.Watch(session="a", site="sae.4[17]"))
    desk.run(PROMPT, 2)
    assert set(rows) == {1}
    assert given == [len(PROMPT), 1]  # what comes before the rows is computed once a pass


def test_the_value_of_a_condition_is_that_of_one_feature(desk: Desk, tmp_path: Path) -> None:
    add(desk, saes.saved(tmp_path, saes.drawn(width(desk))))
    for site in ("sae.4", "sae.4[1,2]", "z.3[0]", "resid_post.2"):
        with pytest.raises(InvalidCondition, match="value is of one feature"):
            desk.stop_at(site, "value > 0")
    assert desk.stop_at("resid_post.2[7]", "value > 0")


def test_a_site_that_a_module_does_not_have_is_named(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(UnknownSite, match=r"no module or point 'sae\.4'"):
        desk.stop_at("sae.4")
    add(desk, saes.saved(tmp_path, saes.drawn(width(desk))))
    with pytest.raises(UnknownSite, match=r"There is no sae.4\[48\]: this site has 48 features"):
        desk.stop_at("sae.4[48]")
    with pytest.raises(UnknownSite, match=r"no module or point 'sae\.5'"):
        desk.stop_at("sae.5")
    remove(desk)
    with pytest.raises(UnknownSite, match=r"no module or point 'sae\.4'"):
        desk.stop_at("sae.4")
