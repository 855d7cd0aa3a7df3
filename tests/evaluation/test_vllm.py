"""vLLM beside us: what it offers, and agents that it serves."""

from __future__ import annotations

import ast
import importlib.util
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeGuard

import msgspec
import pynvml
import pytest
import torch

from djinn_evaluation import report
from djinn_evaluation.agents.experiment import vllm_beside
from djinn_evaluation.agents.living import AgentRecord, scripts
from djinn_evaluation.baselines.asking import baseline
from djinn_evaluation.baselines.vllm import answers_of, device_gigabytes, found_in, see_only, stop_at_layer
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import AgentsFile, Whitebox
from djinn_evaluation.course import Course, Unmeasured
from djinn_evaluation.validation import flatline
from djinn_evaluation.whitebox import experiment
from djinn_evaluation.whitebox.experiment import _vllm
from djinn_jupyter.units import GIB
from tests.evaluation.fields import missing
from tests.evaluation.planted_vllm import plant

Patch = pytest.MonkeyPatch
NOTHING_OF = {"status", "baseline", "model", "vllm_installed", "vllm_initialized", "api_tests", "conclusion", "reasons"}
FAULTS = {  # a package of that name whose start goes wrong
    "raises": (
        "class LLM:\n def __init__(self, **options): raise RuntimeError('No GPU here.\\nAnd more.')",
        "No GPU here.",
    ),
    "says nothing": ("class LLM:\n def __init__(self, **options): raise RuntimeError", "RuntimeError"),
    "is broken": ("import vllm_c_extension", "ModuleNotFoundError: No module named 'vllm_c_extension'"),
    "ends the process": ("import os; os._exit(3)", "The baseline ended with status 3: it said nothing."),
}


@pytest.fixture
def course(tmp_path: Path) -> Course:
    (tmp_path / "out").mkdir()
    return Course(folder=tmp_path / "out", log=logging.getLogger("test"))


def examined(course: Course) -> dict[str, Any]:
    """Return the results that `whitebox` writes of vLLM, by the process that it starts."""
    _vllm(course, read("whitebox_small.yaml", Whitebox))
    found: dict[str, Any] = json.loads((course.folder / "vllm_results.json").read_text())
    assert missing(course.folder) == []
    return found


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_where_it_is_not_installed_it_has_not_run(course: Course) -> None:
    found = examined(course)
    assert (found["status"], found["vllm_installed"]) == ("not_run", False)
    assert found["reasons"]["api_tests"] == "vLLM is not installed here (pip install vllm, for a GPU)"


@pytest.mark.parametrize("fault", FAULTS)
def test_where_it_does_not_start_it_has_not_run(fault: str, course: Course, tmp_path: Path, monkeypatch: Patch) -> None:
    source, reason = FAULTS[fault]
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    found = examined(course)
    assert found.keys() == NOTHING_OF
    assert (found["status"], found["vllm_installed"], found["vllm_initialized"]) == ("not_run", True, False)
    assert reason in found["reasons"]["api_tests"]
    course.write("comparative_results.json", experiment.compare(None, found, None))
    report.write(course, "whitebox", [])
    said = " ".join((course.folder / "report.md").read_text().split())
    assert "| breakpoint_support | not measured | not measured | not measured |" in said
    assert reason in course.written["comparative_results.json"]["reasons"]["summary_table.breakpoint_support.vllm"]
    streamed = flatline._asked(
        course, "vllm", {"model": "demo", "dtype": "float32", "cpu_offload_gb": 0, "length": 24}, []
    )
    assert streamed["status"] == "not_run"
    assert reason in streamed["reason"]


class Sampling(msgspec.Struct):
    """Sampling parameters as vLLM's are."""

    temperature: float = 1.0
    stop_token_ids: tuple[int, ...] = ()


class Offline:
    def __init__(self, model: str, **options: Any) -> None: ...

    def generate(self, prompts: Any, sampling_params: Any = None, *, use_tqdm: bool = True) -> None: ...

    def sleep(self, level: int = 1, mode: str = "abort") -> None: ...


class Stopping(Offline):
    def pause_at_layer(self, layer: int) -> None: ...

    def resume_from_checkpoint(self, path: str) -> None: ...

    def generate(self, prompts: Any, sampling_params: Any = None, *, breakpoint_layer: int = 0) -> None: ...

    def get_hidden_states(self, layer: int) -> None: ...


def test_what_it_offers_is_read_off_its_classes() -> None:
    found = found_in(SimpleNamespace(LLM=Offline, SamplingParams=Sampling))
    assert found.methods == ("Offline.generate", "Offline.sleep")
    assert {"Offline.use_tqdm", "Offline.level", "Sampling.stop_token_ids"} <= {*found.parameters}
    assert not any(answers_of(found).values())


def test_an_interface_that_stops_at_layers_is_seen() -> None:
    found = found_in(SimpleNamespace(LLM=Stopping, SamplingParams=Sampling))
    assert all(answers_of(found).values())
    assert found.evidence()["breakpoint_layer_parameter"] == ["Stopping.breakpoint_layer"]


def test_a_gpu_of_that_index_is_the_only_one_it_sees() -> None:
    for seen, expected in ((None, "1"), ("4,6", "6"), ("GPU-a, GPU-b", "GPU-b")):
        environment = {} if seen is None else {"CUDA_VISIBLE_DEVICES": seen}
        see_only("cuda:1", environment)
        assert environment == {"CUDA_VISIBLE_DEVICES": expected}
    untouched: dict[str, str] = {}
    see_only(None, untouched)
    see_only("cpu", untouched)
    assert untouched == {}


def test_memory_is_what_the_driver_says(monkeypatch: Patch) -> None:
    assert device_gigabytes() is None
    answers = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetHandleByUUID": "card"}
    answers["nvmlDeviceGetMemoryInfo"] = SimpleNamespace(used=2 << 30)
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *asked, answer=answer, **options: answer)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert device_gigabytes() == 2.0


def paused(seconds: float = 1.0) -> dict[str, Any]:
    with baseline("vllm") as vllm:
        return vllm.ask("pause", model="demo", dtype=None, tokens=[1, 2], new=6, seconds=seconds)


def test_one_request_is_put_aside_while_another_ends(tmp_path: Path, monkeypatch: Patch) -> None:
    """The pause of the whole engine lets none go on; one request is aborted and asked for again with its tokens."""
    plant(tmp_path, monkeypatch)
    found = paused()
    assert found["status"] == "success"
    assert 0 < found["paused_after_tokens"] < 6
    assert "stood_still" not in found  # of a request that was aborted it would be true whatever vLLM did
    assert found["request_b_ended_during_pause"]
    assert found["ended"]
    assert found["tokens_equal_without_pause"]
    assert found["cached_tokens_on_return"] == 2 + found["paused_after_tokens"]
    whole = found["whole_engine"]
    assert (whole["stood_still"], whole["request_b_ended_during_pause"]) == (True, False)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({") % 97": ") % 97 + (len(self.seen) > 1)"}, "tokens_equal_without_pause"),
        (
            {"await self.going_on.wait()": "await asyncio.sleep(0.2 * (request_id == 'b'))"},
            "request_b_ended_during_pause",
        ),
    ],
    ids=["other tokens", "b is slow"],
)
def test_a_request_that_does_not_go_on_as_before_is_seen(
    tmp_path: Path, monkeypatch: Patch, change: dict[str, str], field: str
) -> None:
    plant(tmp_path, monkeypatch, **change)
    assert paused(0.05)[field] is False


class Layered:
    """An engine with a model of layers in this process; `stops`: an abort ends the pass."""

    def __init__(self, *, stops: bool) -> None:
        self.model = torch.nn.ModuleDict(
            {
                "head": torch.nn.ModuleList([torch.nn.Identity()]),
                "layers": torch.nn.ModuleList(map(self._layer, range(6))),
            }
        )
        self.llm_engine, self.steps, self._stops, self._aborted = self, 0, stops, False

    def _layer(self, number: int) -> torch.nn.Module:
        return torch.nn.Linear(3, 3)

    def apply_model(self, function: Any) -> list[Any]:
        return [function(self.model)]

    def add_request(self, name: str, prompt: Any, sampling: Any) -> None:
        self.hidden = torch.ones(len(prompt["prompt_token_ids"]), 3)

    def has_unfinished_requests(self) -> bool:
        return self.steps < 4 and not self._aborted

    def step(self) -> None:
        self.steps += 1
        hidden = self.hidden
        for layer in self.model["layers"]:
            hidden = layer(hidden)
            if self._aborted and self._stops:
                return

    def abort_request(self, names: list[str]) -> None:
        self._aborted = True


@pytest.mark.parametrize(("stops", "after"), [(False, 2), (True, 0)])
def test_a_stop_inside_a_pass_is_counted_by_layers(*, stops: bool, after: int) -> None:
    """Not found by a name: the layers are counted that run after the request was to stop."""
    engine = Layered(stops=stops)
    found = stop_at_layer(engine, [5, 6, 7, 8], None)
    assert found == {
        "layers": 6,
        "asked_after_layers": 4,
        "layers_run_after_it": after,
        "hidden_state_read": [4, 3],
        "stops_inside_a_pass": stops,
    }
    assert not any(layer._forward_hooks for layer in engine.model["layers"])


def test_a_hook_that_is_not_called_says_nothing_about_a_stop() -> None:
    """A compiled model runs none of them; that no layer ran behind the stop is then no finding."""
    engine = Layered(stops=False)
    for layer in engine.model["layers"]:
        layer.register_forward_hook = torch.nn.Identity().register_forward_hook
    with pytest.raises(RuntimeError, match="none was asked to stop"):
        stop_at_layer(engine, [5, 6, 7, 8], None)


def test_a_pause_that_cannot_be_says_why() -> None:
    with baseline("vllm") as vllm:
        found = vllm.ask("pause", model="demo", dtype=None, tokens=[1, 2], new=2, seconds=0.1)
    assert found["status"] == "not_run"
    assert found["reason"].startswith(("vLLM does not pause", "vLLM is not installed here"))


# What is asked of vLLM, by the file, the class, the method (None: the fields of the class) and the names.
ASKED = [
    ("sampling_params", "SamplingParams", None, "temperature max_tokens ignore_eos detokenize"),
    (
        "engine/arg_utils",
        "EngineArgs",
        None,
        "model dtype max_model_len skip_tokenizer_init load_format seed enforce_eager enable_prefix_caching "
        "enable_sleep_mode cpu_offload_gb kv_cache_memory_bytes kv_offloading_size",
    ),
    ("entrypoints/llm", "LLM", "generate", "prompts sampling_params use_tqdm"),
    ("entrypoints/llm", "LLM", "sleep", "level"),
    ("entrypoints/llm", "LLM", "wake_up", ""),
    ("entrypoints/llm", "LLM", "apply_model", "func"),
    ("v1/engine/llm_engine", "LLMEngine", "add_request", "request_id prompt params"),
    ("v1/engine/llm_engine", "LLMEngine", "abort_request", "request_ids"),
    ("v1/engine/llm_engine", "LLMEngine", "has_unfinished_requests", ""),
    ("v1/engine/llm_engine", "LLMEngine", "step", ""),
    ("v1/engine/async_llm", "AsyncLLM", "from_engine_args", "engine_args"),
    ("v1/engine/async_llm", "AsyncLLM", "generate", "prompt sampling_params request_id"),
    ("v1/engine/async_llm", "AsyncLLM", "pause_generation", "mode clear_cache"),
    ("v1/engine/async_llm", "AsyncLLM", "resume_generation", ""),
    ("v1/engine/async_llm", "AsyncLLM", "shutdown", ""),
]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
@pytest.mark.parametrize(("file", "owner", "method", "names"), ASKED, ids=lambda asked: str(asked)[:40])
def test_the_installed_version_has_what_is_asked_of_it(file: str, owner: str, method: str | None, names: str) -> None:
    """Read from its files, which need neither its torch nor a GPU to be there."""
    found = importlib.util.find_spec("vllm")
    (folder,) = found.submodule_search_locations or ()
    classes = {one.name: one for one in ast.parse((Path(folder) / f"{file}.py").read_text()).body if is_class(one)}
    there = {one.name: one for one in classes[owner].body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}
    if method is None:
        taken = {one.target.id for one in classes[owner].body if is_field(one)}
    else:
        given = there[method].args
        taken = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    assert {*names.split()} <= taken


def is_class(one: ast.stmt) -> TypeGuard[ast.ClassDef]:
    return isinstance(one, ast.ClassDef)


def is_field(one: ast.stmt) -> TypeGuard[Any]:
    return isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)


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
    older = {"kv_offloading_size: float": "other: float", "args.kv_offloading_size": "args.other"}
    plant(tmp_path, monkeypatch, **older, **{"def get_metrics_snapshot": "def another_name"})
    rows = beside(tmp_path, file)["ways"]
    assert all(isinstance(row["preemptions"], Unmeasured) for row in rows[:2]), "it does not count them"
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
