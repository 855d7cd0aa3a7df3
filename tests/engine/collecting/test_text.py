"""The measures of a text's tokens are those of the plain model's full forward, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.requests import bounds
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.text import engine
from djinn_jupyter.methods.text.request import ReadText, ReadTextLens, TextLensRead, TextMeasured
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Scale
from tests import saes
from tests.device import DEVICE
from tests.engine.added.adding import add, remove
from tests.engine.added.test_adding import declared
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.plain import plain_of

LAYERS = 3
PROMPT = tokens(9)


def read(desk: Desk, line: Any = "a", **fields: Any) -> TextMeasured:
    desk.open("s")
    reply = desk.ask(ReadText(session="s", line=line, **fields))
    assert isinstance(reply, TextMeasured), reply
    return reply


def plain(model: Any, line: tuple[int, ...], **fields: Any) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([line], device=DEVICE), use_cache=True, **fields)


@pytest.mark.parametrize(("family", "dtype"), [("gemma2", torch.bfloat16), ("mamba2", torch.float32)])
def test_a_finished_run_has_the_bits_of_the_plain_models_full_forward(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ROWS", 4)
    desk, model = desk_of(family, dtype, layers=LAYERS), plain_of(family, dtype, layers=LAYERS)
    desk.open("a")
    new = desk.run(PROMPT, 4).tokens
    found = read(desk, metric="logit(7) - 2 * p(5)", top=3)
    line = (*PROMPT, *new)
    assert (found.tokens, found.generated) == (line, ((9, 13),))
    logits = plain(model, line).logits[0].float().cpu()
    logs = torch.log_softmax(logits, -1)
    after = torch.tensor(line[1:])
    assert torch.equal(to_tensor(found.log_probabilities), logs[:-1].gather(1, after[:, None])[:, 0])
    assert torch.equal(to_tensor(found.entropies), torch.special.entr(logs.exp()).sum(-1))
    chances = logits.softmax(-1)
    metric = (logits[:, 7].double() - 2 * chances[:, 5].double()).tolist()
    assert to_tensor(found.metrics).tolist() == pytest.approx(metric, abs=1e-6)
    best = chances.topk(3)
    assert [[one.token for one in row.top] for row in found.rows] == logits.topk(3).indices.tolist()
    assert [[one.probability for one in row.top] for row in found.rows] == best.values.tolist()
    assert [row.position for row in found.rows] == list(range(13))
    desk.close_all()


def test_a_site_is_measured_by_its_norm_or_along_a_direction_at_each_position() -> None:
    desk, model = desk_of("llama", layers=LAYERS), plain_of("llama", layers=LAYERS)
    states = plain(model, PROMPT, output_hidden_states=True).hidden_states[2][0].float().cpu()
    found = read(desk, PROMPT, site="resid_post.1")
    assert (found.of, found.generated) == ("norm", ())
    assert torch.equal(to_tensor(found.site_values), states.norm(dim=1))
    vector = torch.linspace(-1, 2, states.shape[1])
    found = read(desk, PROMPT, site="resid_post.1", direction=to_array(vector))
    assert found.of == "component"
    assert (to_tensor(found.site_values) - states @ (vector / vector.norm())).abs().max() < 1e-5
    with pytest.raises(UsageError, match="name the site too"):
        read(desk, PROMPT, direction=to_array(vector))
    desk.close_all()


def test_a_probe_and_a_feature_are_measured_by_their_one_number(tmp_path: Path) -> None:
    desk, model = desk_of("llama", layers=LAYERS), plain_of("llama", layers=LAYERS)
    state = plain(model, PROMPT, output_hidden_states=True).hidden_states[2][0].cpu()
    weight, bias = torch.linspace(-1, 1, state.shape[1])[None], torch.tensor([0.5])
    add(desk, declared(tmp_path / "p", "probe", weight, bias), at="resid_post.1", name="probe")
    tensors = saes.drawn(state.shape[1])
    add(desk, saes.saved(tmp_path / "sae", tensors), at="resid_post.1")
    found = read(desk, PROMPT, site="probe.1")
    assert (found.of, [one.name for one in found.made.modules]) == ("value", ["probe"])
    assert (to_tensor(found.site_values) - (state @ weight.T + bias)[:, 0]).abs().max() < 1e-5
    active = ((state - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"]).relu()
    for unit in (0, 5):
        values = to_tensor(read(desk, PROMPT, site=f"sae.1[{unit}]").site_values)
        assert (values - active[:, unit]).abs().max() < 1e-4
    assert (to_tensor(read(desk, PROMPT, site="sae.1").site_values) - active.norm(dim=1)).abs().max() < 1e-4
    remove(desk, "probe")
    remove(desk)
    desk.close_all()


def test_a_stopped_prompt_is_read_whole_and_its_stop_stays() -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    desk.stop_at("resid_post.1")
    before = desk.run(PROMPT, 2)
    assert read(desk) == read(desk, PROMPT)
    assert desk.ask(ask.ReadStop(session="a")).stop == before.stop
    desk.edit(Scale(factor=0.5))
    with pytest.raises(UsageError, match="has edits made at stops"):
        read(desk)
    desk.close_all()


@pytest.mark.parametrize("on", ["new", "prompt"])
def test_a_rule_for_some_passes_holds_at_their_positions(on: Any) -> None:
    """The values of a pass for each token are those of the one pass, but for the order of its sums."""
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    width = desk.engine.anatomy.hidden_size
    desk.steer("resid_post.0", Add(vector=to_array(torch.ones(width))), on=on)
    desk.ask(ask.Watch(session="a", site="resid_post.1"))
    new = desk.run(PROMPT, 4).tokens
    values = [to_tensor(one).float() for one in desk.ask(ask.ReadWatch(session="a", site="resid_post.1")).values]
    fed = torch.cat(values).norm(dim=1)
    found = read(desk, site="resid_post.1", rules_of="a")
    assert found.tokens == (*PROMPT, *new)
    measured = to_tensor(found.site_values)
    assert (measured[: len(fed)] - fed).abs().max() < 1e-4
    assert (measured - to_tensor(read(desk, site="resid_post.1").site_values)).abs().max() > 0.1
    again = read(desk, found.tokens, site="resid_post.1")
    assert not torch.equal(to_tensor(again.site_values), measured)
    desk.close_all()


@pytest.mark.parametrize("where", [{"positions": (-1,)}, {"when": "step > 0"}, {"on": "new", "positions": (9,)}])
def test_a_rule_that_one_pass_cannot_have_is_refused(where: Any) -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    desk.steer("resid_post.0", Scale(factor=0.5), **where)
    desk.run(PROMPT, 0)
    assert read(desk, rules_of="a").generated == ()
    desk.run(PROMPT, 2)
    with pytest.raises(UsageError, match=r"^Rule 1 \(.*\) chooses its positions pass by pass"):
        read(desk, rules_of="a")
    desk.close_all()


def test_an_empty_session_and_a_strange_token_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    with pytest.raises(UsageError, match="The session has no text yet; run a prompt in it"):
        read(desk)
    with pytest.raises(UsageError, match="The text has the token id 1000, which is not in the vocabulary"):
        read(desk, (5, 1000))
    monkeypatch.setattr(bounds, "ANSWERED_TOKENS", 44)
    with pytest.raises(UsageError, match="5 tokens at each of 9 positions are more than the 44 of one answer"):
        read(desk, PROMPT)
    assert read(desk, (5,)).log_probabilities.shape == (0,)
    desk.close_all()


# --- the lens over a text ---------------------------------------------------------------------------------------------


def lens(desk: Desk, line: Any = "a", **fields: Any) -> TextLensRead:
    desk.open("s")
    reply = desk.ask(ReadTextLens(session="s", line=line, **fields))
    assert isinstance(reply, TextLensRead), reply
    return reply


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_lens_of_a_finished_run_is_the_plain_models_head_on_its_hidden_states(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ROWS", 4)
    desk, model = desk_of(family, layers=LAYERS), plain_of(family, layers=LAYERS)
    desk.open("a")
    line = (*PROMPT, *desk.run(PROMPT, 4).tokens)
    found = lens(desk, sites=("resid_post.0", "resid_post.1"), top=3, tokens=(7, 5))
    assert (found.tokens, found.generated, found.sites) == (line, ((9, 13),), ("resid_post.0", "resid_post.1"))
    states = plain(model, line, output_hidden_states=True).hidden_states[1:3]
    base = model.base_model
    norm = base.norm if family == "llama" else base.ln_f
    with torch.inference_mode():
        chances = torch.stack([model.lm_head(norm(one[0])) for one in states]).float().cpu().softmax(-1)
    after = torch.tensor(line[1:]).expand(2, -1)[..., None]
    for name, expected in {
        "top_probabilities": chances.topk(3).values,
        "entropies": torch.special.entr(chances).sum(-1),
        "next_probabilities": chances[:, :-1].gather(2, after)[..., 0],
        "chosen": chances[..., [7, 5]],
    }.items():
        told = to_tensor(getattr(found, name))
        assert told.shape == expected.shape, name
        assert (told - expected).abs().max() < 1e-6, name
    assert torch.equal(to_tensor(found.top_tokens).long(), chances.topk(3).indices)
    assert set(dict(found.spelled)) == {*chances.topk(3).indices.flatten().tolist(), 7, 5}
    desk.close_all()


def test_the_lens_of_a_text_has_the_bits_of_the_lens_at_a_stop() -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    desk.stop_at("resid_post.1")
    desk.run(PROMPT, 1)
    rows = desk.ask(ask.Lens(session="a", top=3)).rows
    found = lens(desk, sites=("resid_post.1",), top=3)
    assert to_tensor(found.top_probabilities)[0].tolist() == [[one.probability for one in row.top] for row in rows]
    assert to_tensor(found.top_tokens)[0].tolist() == [[one.token for one in row.top] for row in rows]
    desk.close_all()


def test_a_tuned_lens_is_another_kind_and_other_widths_are_refused(tmp_path: Path) -> None:
    desk = desk_of("llama", layers=LAYERS)
    width = desk.engine.anatomy.hidden_size
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(width, width, generator=generator) / 9, torch.randn(width, generator=generator)
    add(desk, declared(tmp_path / "tuned", "tuned_lens", weight, bias), at="resid_post.1", name="tuned")
    found = lens(desk, PROMPT, sites=("resid_post.1", "tuned.1"), top=1)
    model = plain_of("llama", layers=LAYERS)
    state = plain(model, PROMPT, output_hidden_states=True).hidden_states[2][0].cpu()
    with torch.inference_mode():
        tuned = model.lm_head(model.model.norm((state + state @ weight.T + bias).to(DEVICE))).float().cpu().softmax(-1)
    assert (to_tensor(found.top_probabilities)[1, :, 0] - tuned.max(-1).values).abs().max() < 1e-5
    assert [one.name for one in found.made.modules] == ["tuned"]
    for site in ("q.1", "resid_post.1[3]", "mlp_post.1"):
        with pytest.raises(UnknownSite, match="reads whole values of the residual stream's width"):
            lens(desk, PROMPT, sites=(site,))
    remove(desk, "tuned")
    desk.close_all()


def test_the_values_of_a_lens_are_bounded_and_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)
    width = desk.engine.anatomy.hidden_size
    held: list[int] = []
    plain_lens = engine.lens_of

    def seen(*given: Any) -> Any:
        held.append(desk.engine.budget.held()["texts"])
        return plain_lens(*given)

    monkeypatch.setattr(engine, "lens_of", seen)
    lens(desk, PROMPT, sites=("resid_post.0", "resid_post.1"))
    if DEVICE == "cpu":
        assert held == [2 * len(PROMPT) * width * 4] * 2
    assert desk.engine.budget.held()["texts"] == 0
    monkeypatch.setattr(bounds, "ANSWERED_VALUES", 2 * len(PROMPT) * width * 4 - 1)
    with pytest.raises(UsageError, match="ask for those of fewer sites at a time"):
        lens(desk, PROMPT, sites=("resid_post.0", "resid_post.1"))
    desk.close_all()
