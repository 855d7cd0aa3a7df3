"""vLLM beside the agents: the scripts that it is asked with, what is read of its answers, and why it did not run."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from djinn_evaluation.agents.experiment import vllm_beside
from djinn_evaluation.agents.living import AgentRecord, scripts
from djinn_evaluation.baselines.asking import baseline
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import AgentsFile
from djinn_evaluation.course import Course, Unmeasured
from djinn_jupyter.units import GIB
from tests.evaluation.planted_vllm import plant

Patch = pytest.MonkeyPatch
COUNTS, REPETITIONS, TURNS = (2, 4), 2, 3


@pytest.fixture(scope="module")
def file() -> AgentsFile:
    """The small profile without pauses, so that all agents are there at once."""
    whole = read("agents_small.yaml", AgentsFile)
    crowd = msgspec.structs.replace(whole.agents, counts=COUNTS, arrival_seconds=1e-9)
    pauses = msgspec.structs.replace(whole.pauses, longest_seconds=1e-9)
    return msgspec.structs.replace(whole, agents=crowd, pauses=pauses, resamples=100)


def beside(folder: Path, file: AgentsFile) -> dict[str, Any]:
    course = Course(folder=folder, log=logging.getLogger("test"))
    drawn = {at: scripts(file, max(COUNTS), 97, at) for at in range(REPETITIONS)}
    alone = {at: [AgentRecord(script=script) for script in found] for at, found in drawn.items()}
    sums: Any = SimpleNamespace(capacity=3 * GIB, weights=GIB, host=None, per_session=GIB)
    return vllm_beside(course, file, sums, alone)


def test_every_agent_is_asked_with_all_its_tokens(tmp_path: Path, monkeypatch: Patch, file: AgentsFile) -> None:
    """A turn begins with what the one before it ended with, so all of that can be in the cache."""
    plant(tmp_path, monkeypatch)
    found = beside(tmp_path, file)
    assert found["status"] == "success"
    cases = [(row["way"], row["agents"]) for row in found["ways"]]
    assert cases == [(way, count) for way in ("prefix_cache", "prefix_cache_and_offload") for count in COUNTS]
    for row in found["ways"]:
        assert row["repetitions"] == REPETITIONS
        assert row["texts_equal_alone"] == REPETITIONS * row["agents"]
        later = [file.agents.prompt_tokens + turn * file.agents.reply_tokens for turn in range(1, TURNS)]
        assert row["cached_tokens"] >= row["agents"] * REPETITIONS * sum(later)
        assert row["first_token_ms"]["p50"]["low"] <= row["first_token_ms"]["p99"]["high"]
        assert row["token_ms"]["p50"]["value"] > 0
        assert bool(row["preemptions"]) is (row["way"] == "prefix_cache"), "the planted one preempts without an offload"


def test_what_the_same_agents_left_in_the_cache_is_not_found_again(
    tmp_path: Path, monkeypatch: Patch, file: AgentsFile
) -> None:
    """They live twice, alone and in the crowd: the prompts of the crowd were in the cache before it arrived."""
    plant(tmp_path, monkeypatch)
    agents = [asdict(script) for script in scripts(file, 2, 97, 0)]
    with baseline("vllm") as side:
        asked = {"model": "demo", "dtype": None, "length": file.agents.positions + 1, "cache_bytes": GIB}
        assert side.ask("start", **asked, offload_gb=0)["status"] == "success"
        lives = [side.ask("live", agents=agents, reply_tokens=2, pauses=False)["agents"] for _ in range(2)]
    once, again = ([[reply["cached_tokens"] for reply in replies] for replies in agents] for agents in lives)
    assert once == again


def test_a_text_that_others_change_is_seen(tmp_path: Path, monkeypatch: Patch, file: AgentsFile) -> None:
    plant(tmp_path, monkeypatch, **{"return sum": "return self.running + sum"})
    for row in beside(tmp_path, file)["ways"]:
        assert row["texts_equal_alone"] < REPETITIONS * row["agents"]


def test_an_older_one_has_the_rows_that_it_can(tmp_path: Path, monkeypatch: Patch, file: AgentsFile) -> None:
    plant(
        tmp_path, monkeypatch, **{"kv_offloading_size: float": "other: float", "args.kv_offloading_size": "args.other"}
    )
    rows = beside(tmp_path, file)["ways"]
    assert [row["status"] for row in rows] == ["success", "success", "not_run"]
    assert rows[-1]["reason"] == "this vLLM has no option kv_offloading_size"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_cache_memory_bytes": "other"}, "this vLLM has no option kv_cache_memory_bytes"),
        ({"made = cls()": "raise RuntimeError('No GPU here.')"}, "vLLM did not start: RuntimeError: No GPU here."),
        (
            {"assert len": "raise ValueError('Too long.')\n        assert len"},
            "The baseline failed: ValueError: Too long.",
        ),
    ],
)
def test_where_it_cannot_run_it_says_why(
    tmp_path: Path, monkeypatch: Patch, file: AgentsFile, change: dict[str, str], reason: str
) -> None:
    plant(tmp_path, monkeypatch, **change)
    assert beside(tmp_path, file) == {"status": "not_run", "reason": reason}


def test_preemptions_that_it_does_not_count_have_a_reason(tmp_path: Path, monkeypatch: Patch, file: AgentsFile) -> None:
    plant(tmp_path, monkeypatch, **{"def get_metrics_snapshot": "def another_name"})
    assert all(isinstance(row["preemptions"], Unmeasured) for row in beside(tmp_path, file)["ways"])
