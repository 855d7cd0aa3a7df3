"""Scores and patterns of heads are those of the plain model's own attention maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import DjinnError, SlabFull
from djinn_jupyter.methods.heads.engine.handlers import HeadReading, targets_of
from djinn_jupyter.methods.heads.request import HeadsRead, ReadHeads
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Zero
from djinn_jupyter.wire.sites import Site
from tests.device import DEVICE
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.plain import plain_of
from tests.families import build

LINE = (*tokens(7), *tokens(7))  # repeated once, so every token of the second half is known
OTHER = (5, 9, 5, 9, 9)


def read(desk: Desk, *lines: Any, **fields: Any) -> Any:
    desk.open("a")
    return desk.ask(ReadHeads(session="a", lines=lines, **fields))


def by_hand(family: str, line: tuple[int, ...]) -> torch.Tensor:
    """Return the model's own attention [layers, heads, queries, keys], of eager attention."""
    model = plain_of(family, attention="eager", layers=3)
    with torch.inference_mode():
        maps = model(torch.tensor([line], device=DEVICE), use_cache=False, output_attentions=True).attentions
    return torch.cat(maps).cpu()


def pairs_of(kind: int, line: tuple[int, ...]) -> dict[int, list[int]]:
    """Return the keys that such a head looks at, by query; written as the definition says it."""
    found: dict[int, list[int]] = {}
    for query, token in enumerate(line):
        earlier = [key for key in range(query) if line[key] == token]
        keys = ([query - 1] if query else [], earlier, [key + 1 for key in earlier if key + 1 < query])[kind]
        if keys:
            found[query] = keys
    return found


@pytest.mark.parametrize(("family", "attention"), [("llama", "eager"), ("gemma2", None), ("gpt_oss", None)])
def test_scores_and_patterns_are_those_of_the_models_own_maps(family: str, attention: str | None) -> None:
    desk = desk_of(family, attention=attention, layers=3)
    reply = read(desk, LINE, OTHER, patterns=True)
    assert isinstance(reply, HeadsRead), reply
    maps = {line: by_hand(family, line) for line in (LINE, OTHER)}
    assert (to_tensor(reply.patterns) - maps[LINE]).abs().max() < 1e-5
    for kind in range(3):
        weights = [
            maps[line][:, :, query, keys].sum(-1)
            for line in (LINE, OTHER)
            for query, keys in pairs_of(kind, line).items()
        ]
        assert reply.counted[kind] == len(weights)
        assert (to_tensor(reply.scores)[kind] - torch.stack(weights).mean(0)).abs().max() < 1e-5
    desk.close_all()


def test_a_line_without_repetition_has_no_induction_score() -> None:
    desk = desk_of("llama", layers=3)
    reply = read(desk, (3, 4, 5))
    assert reply.counted == (2, 0, 0)
    assert to_tensor(reply.scores)[1:].isnan().all()
    assert reply.patterns is None
    desk.close_all()


def test_long_patterns_are_pooled_by_their_largest_weight() -> None:
    desk = desk_of("llama", layers=3)
    line = tokens(130)
    reply = read(desk, line, patterns=True)
    found, whole = to_tensor(reply.patterns), by_hand("llama", line)
    assert (reply.pooled, found.shape[-2:]) == (3, (44, 44))
    assert (found[:, :, 5, 2] - whole[:, :, 15:18, 6:9].amax((2, 3))).abs().max() < 1e-5
    desk.close_all()


def test_a_sessions_line_is_read_also_at_a_stop_and_its_rules_hold() -> None:
    desk = desk_of("llama", layers=3)
    desk.open("b")
    desk.stop_at("resid_post.1", name="b")
    desk.run(LINE, 1, "b")
    plain = read(desk, "b", patterns=True)
    assert len(plain.texts) == len(LINE)
    desk.steer("resid_pre.1", name="b")
    steered = read(desk, "b", patterns=True, rules_of="b")
    assert torch.equal(to_tensor(plain.patterns)[0], to_tensor(steered.patterns)[0])
    assert not torch.equal(to_tensor(plain.patterns)[1], to_tensor(steered.patterns)[1])
    desk.close_all()


def test_a_stopped_line_with_edited_values_is_refused() -> None:
    """A pass over its tokens would not have these values."""
    desk = desk_of("llama", layers=3)
    desk.open("b")
    desk.stop_at("resid_post.1", "step == 1", name="b")
    desk.run(LINE, 3, "b")
    desk.ask(ask.Fork(session="b", name="c", edit=Zero(), site="v.2", positions=(1,)))
    assert desk.describe("c").state == "paused"
    with pytest.raises(DjinnError, match="edited keys or values in its cache"):
        read(desk, "c", rules_of="c")
    desk.close_all()


def test_a_line_of_eager_attention_is_read_with_it_and_with_its_rules_on_patterns() -> None:
    desk = desk_of("llama", layers=3)
    desk.open("b")
    desk.ask(ask.SetAttention(session="b", attention="eager"))
    desk.run(LINE, 0, "b")
    plain = read(desk, "b", patterns=True, rules_of="b")
    assert torch.equal(to_tensor(plain.patterns), by_hand("llama", LINE))
    desk.steer("pattern.1[2]", Zero(), "b")
    steered = to_tensor(read(desk, "b", patterns=True, rules_of="b").patterns)
    assert (steered[1, 2] == 0).all()
    assert torch.equal(steered[0], to_tensor(plain.patterns)[0])
    desk.close_all()


@pytest.mark.parametrize(
    ("family", "line", "said"),
    [
        ("mamba2", LINE, "No layer of this model has attention patterns to read: There is no pattern"),
        ("llama", (10**6,), "token id 1000000, which is not in the vocabulary"),
        ("llama", "nobody", "no session"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(family: str, line: Any, said: str) -> None:
    desk = desk_of(family, layers=3)
    with pytest.raises(DjinnError, match=said):
        read(desk, line)
    desk.close_all()


def test_targets_of_a_token_that_follows_itself_are_before_the_query() -> None:
    previous, same, behind = targets_of((7, 7, 7))
    assert previous.nonzero().tolist() == [[1, 0], [2, 1]]
    assert same.nonzero().tolist() == [[1, 0], [2, 0], [2, 1]]
    assert behind.nonzero().tolist() == [[2, 1]]


def test_the_masks_of_a_line_are_in_the_budget_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=3)
    held: list[int] = []
    read_line = HeadReading.read

    def noted(*given: Any) -> Any:
        held.append(desk.engine.budget.held()["heads"])
        return (yield from read_line(*given))

    monkeypatch.setattr(HeadReading, "read", noted)
    read(desk, tokens(130), tokens(9))
    each = desk.engine.runtime.resolve(Site(point="pattern", layer=0)).heads or 0
    assert held == [length**2 * (3 + 2 * each * 4) for length in (130, 9)]
    assert desk.engine.budget.held()["heads"] == 0
    desk.close_all()


def test_a_line_whose_masks_find_no_memory_is_one_sentence() -> None:
    model = build("llama", layers=3)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    desk = build_desk(model, device_memory=weights + 2 * 2**20, host_memory=0, disk_memory=0)
    assert read(desk, tokens(9)).counted[0] == 8
    with pytest.raises(SlabFull, match="device memory"):
        read(desk, tokens(400), patterns=True)
    desk.close_all()
    desk.engine.check_invariants(contents=True)
