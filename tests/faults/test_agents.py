"""Agents that pause on a card that cannot hold them: served with the bits that they have alone, and the faults that the
comparison has to find."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_evaluation.agents import crowd, experiment
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.engine.memory.offload.tiers import Load, Tiers
from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.engine.session import run
from djinn_jupyter.engine.session.residence import Swap
from djinn_jupyter.errors import SlabFull
from tests.faults.inside import Inside, Ran

CARD = (280_736 + 15 * 16_384) / 2**30  # GiB: the weights and fifteen pages; an agent comes to six
AGENTS = f"""
model: {{name: tiny}}
agents:
  counts: [6]
  turns: 3
  prompt_tokens: 48
  shared_tokens: 16
  shared: 0.5
  reply_tokens: 3
  tool_tokens: 4
  arrival_seconds: 0.01
pauses: {{tool_seconds: [0.1, 0.2], median_seconds: 0.1, burst_seconds: 0.05, longest_seconds: 0.3}}
hardware: {{vram_limit_gb: {CARD}}}
ways: [lru, hinted]
idle_seconds: 0.05
patience_seconds: 60.0
resamples: 100
duration: 10
output_dir: results
"""


def agents(inside: Inside, *settings: str) -> Ran:
    return inside.run("agents", *settings, text=AGENTS)


def rows(ran: Ran) -> dict[str, dict[str, Any]]:
    return {row["way"]: row for row in ran.file("agents_results.json")["ways"]}


def test_every_agent_has_the_bits_that_it_has_alone(inside: Inside) -> None:
    ran = agents(inside)
    found = ran.file("agents_results.json")
    assert (ran.status, found["status"]) == (0, "success"), ran.said
    assert [options["evict_by_last_use"] for options in ran.engines] == [True, False]
    for row in rows(ran).values():
        assert (row["agents_served"], row["bits_equal_alone"], row["turns_after_pauses"]) == (6, 6, 12)
        assert row["moves"]["out"] > 0
        assert row["first_token_ms"]["p50"]["low"] <= row["first_token_ms"]["p99"]["high"]
    assert [entry["way"] for entry in found["comparisons"]] == ["hinted"]
    assert found["vllm"]["status"] == "not_run"
    assert found["vllm"]["reason"]


def test_keys_and_values_that_are_not_restored_change_a_text(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages come back to their places, and what was in them does not."""
    settle = Tiers._settle_load

    def lost(self: Tiers, entry: Load, *, failed: bool) -> None:
        settle(self, entry, failed=failed)
        entry.item.span().view().zero_()

    monkeypatch.setattr(Tiers, "_settle_load", lost)
    ran = agents(inside, "ways=[lru]")
    assert ran.status == 1
    assert "lru, 6 agents: a text differs from the same agent alone." in ran.report
    assert rows(ran)["lru"]["bits_equal_alone"] < 6


def test_copies_that_took_no_time_fail_the_run(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Swap.settle
    monkeypatch.setattr(Swap, "settle", lambda swap, batch, size, seconds: settle(swap, batch, size, 0.0))
    ran = agents(inside, "ways=[lru]")
    assert ran.status == 1
    assert "faster than the link" in ran.report
    assert ran.file("agents_results.json")["link"]["out"]["transfers"] > 0


def test_a_turn_that_is_refused_in_its_pass_is_read_once(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has taken the tokens of a turn and finds no room for their pass, as it does now and then on a full
    card. Asked for again with its tokens, the turn had them twice."""
    enter, refused = run.entered, set[str]()

    def full(runtime: Any, session: Any, frame: Any, *others: Any) -> Any:
        if session.name not in {"shared prompt", *refused} and frame.committed and len(frame.tokens) > 1:
            refused.add(session.name)
            raise SlabFull("There is no room for the pass of this turn.")
        return (yield from enter(runtime, session, frame, *others))

    def crowded(*asked: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(run, "entered", full)
            return crowd.together(*asked)

    monkeypatch.setattr(experiment, "together", crowded)
    ran = agents(inside, "ways=[lru]")
    assert ran.status == 0, ran.said
    assert len(refused) == 6
    assert rows(ran)["lru"]["turns_asked_again"] >= 6
    assert rows(ran)["lru"]["bits_equal_alone"] == 6


def test_a_fork_that_finds_no_room_is_asked_for_again(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared prompt has left, and comes back for each agent that begins with it; now and then there is no room."""
    fork, refused = RemoteSession.fork, set[str]()

    def full(session: RemoteSession, name: str, **others: Any) -> Any:
        if name not in refused:
            refused.add(name)
            raise SlabFull("There is no room for the shared prompt.")
        return fork(session, name, **others)

    def crowded(*asked: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(RemoteSession, "fork", full)
            return crowd.together(*asked)

    monkeypatch.setattr(experiment, "together", crowded)
    ran = agents(inside, "ways=[lru]")
    assert ran.status == 0, ran.said
    assert len(refused) == 3
    assert rows(ran)["lru"]["turns_asked_again"] >= 3
    assert rows(ran)["lru"]["bits_equal_alone"] == 6


def test_a_card_that_no_session_leaves_fails_the_run(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eviction, "_send_away", lambda self, session, cause: False)
    ran = agents(inside, "ways=[lru]")
    assert ran.status == 1
    assert "lru, 6 agents: no session left the device." in ran.report


def test_agents_that_fit_prove_nothing(inside: Inside) -> None:
    ran = agents(inside, "agents.counts=[1]")
    assert (ran.status, ran.file("agents_results.json")["status"], ran.times("run")) == (1, "error", 0)
    assert "1 agents fit on the card together" in ran.report


def test_an_agent_that_finds_no_room_by_itself_ends_the_run_in_one_sentence(inside: Inside) -> None:
    """There would be nothing to compare the crowd's texts with."""
    ran = agents(inside, f"hardware.vram_limit_gb={(280_736 + 5 * 16_384) / 2**30}", "patience_seconds=0.2")
    assert ran.status == 1
    assert "djinn: agent 2 has no room on the device by itself: " in ran.said, ran.said[-400:]
    assert ran.file("agents_results.json")["status"] == "error"
