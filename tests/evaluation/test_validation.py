"""The meaning of `validation`'s figures, on samples made by hand; impossible settings are refused before the run."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import djinn_jupyter.cli.main as cli
from djinn_evaluation.configuration.reading import architecture, read, shipped_architectures, split
from djinn_evaluation.configuration.sections import Server, ValidationFile, chosen_tests
from djinn_evaluation.course import Unmeasured
from djinn_evaluation.link import Link, TimedCopy
from djinn_evaluation.validation import logit_equivalence, sleep
from djinn_evaluation.validation.opening import AnswerLate, card_for, endpoint, within
from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB

SMALL = "validation_small.yaml"


def file(*settings: str) -> ValidationFile:
    return read(SMALL, ValidationFile, settings)


# ---------------------------------------------------------------------------------------------- logit equivalence


def row(*changed: tuple[int, float]) -> Any:
    logits = np.linspace(0, 9, 10, dtype=np.float32)
    for index, value in changed:
        logits[index] += value
    return logits


def judged(
    *settings: str,
    plain: Any = None,
    ring: Any = None,
    tokens: tuple[int, ...] = (1,),
    moved: tuple[int, ...] = (100,) * 6,
    streamed: int = 100,
    same_device: bool = True,
) -> dict[str, Any]:
    wanted = file(*settings).logit_equivalence
    one = sample((1,), row() if plain is None else plain)
    rings = [sample((1,), one.logits, moved), sample(tokens, row() if ring is None else ring, moved)]
    return logit_equivalence.judge(wanted, [one, one], rings, same_device=same_device, streamed=streamed)


def sample(tokens: tuple[int, ...], logits: Any, moved: tuple[int, ...] = ()) -> logit_equivalence.PromptResult:
    return logit_equivalence.PromptResult(tokens=tokens, logits=logits, milliseconds=1.0, moved=moved)


def test_equal_bits_pass_and_a_bit_less_does_not() -> None:
    assert judged()["passed"]
    off = judged(ring=row((0, 1e-6)))
    assert (off["passed"], off["is_match"], off["preds_match"], off["bitwise_equal"]) == (False, True, True, False)
    assert judged(ring=row((0, 1e-6)), same_device=False)["passed"], "another device may differ within the tolerances"


def test_each_tolerance_counts_where_tolerances_decide() -> None:
    far = row(*((index, 0.05) for index in range(5)))
    no_predictions = "logit_equivalence.pass_if_predictions_match=false"
    found = judged(no_predictions, ring=far, same_device=False)
    assert (found["is_match"], found["passed"], found["decided_by"]) == (False, False, "tolerances"), "the norm is 0.11"
    wide = (no_predictions, "logit_equivalence.tolerance_norm=0.2")
    assert judged(*wide, ring=far, same_device=False)["passed"]
    assert not judged(*wide, "logit_equivalence.tolerance_max_diff=0.01", ring=far, same_device=False)["passed"]


def test_logits_that_are_no_numbers_fail_and_can_be_written() -> None:
    """Of weights that had not arrived. JSON has no NaN, so that the run ended without a file."""
    for same_device in (True, False):
        found = judged(ring=row((0, float("nan"))), same_device=same_device)
        assert not found["passed"]
        json.dumps(found, allow_nan=False)


def test_a_unit_in_the_last_place_on_another_device_is_decided_by_the_five_most_likely() -> None:
    """A fortieth of 32,000 logits in fp16 differs by one unit in the last place, as of one model on two devices."""
    plain = np.linspace(-4, 7.9, 32_000, dtype=np.float32)
    ring = plain.copy()
    ring[25_000:25_800] += 2.0**-8
    found = judged(plain=plain, ring=ring, same_device=False)
    assert found["comparison_metrics"]["norm_diff"] > 0.1
    assert (found["passed"], found["is_match"], found["decided_by"]) == (True, False, "predictions")
    here = judged(plain=plain, ring=ring)
    assert (here["passed"], here["decided_by"]) == (False, "bits")


def test_predictions_count_where_they_are_asked_for() -> None:
    loose = ("logit_equivalence.tolerance_norm=9", "logit_equivalence.tolerance_max_diff=9")
    swapped = row((9, -1.5))
    assert not judged(*loose, ring=swapped, same_device=False)["passed"]
    looser = (*loose, "logit_equivalence.pass_if_predictions_match=false")
    assert judged(*looser, ring=swapped, same_device=False)["passed"]
    assert not judged(tokens=(2,))["preds_match"]


def test_every_pass_moves_exactly_what_streams() -> None:
    assert judged()["passed"]
    for moved, streamed, what in (
        ((0,) * 6, 100, "nothing"),
        ((100, 0, 0, 0, 0, 0), 100, "the first pass alone"),
        ((99, 101, 100, 100, 100, 100), 100, "one layer late"),
        ((101,) * 6, 100, "too much"),
        ((0,) * 6, 0, "nothing streams"),
    ):
        assert not judged(moved=moved, streamed=streamed)["passed"], what


# ---------------------------------------------------------------------------------------------------------- sleep


def night_of(
    *,
    idle: float = 1.5,
    sleep_ms: float = 30_000.0,
    residency: str = "host",
    equal: bool = True,
    cause: str = "idleness",
) -> sleep.Night:
    out = {"direction": "out", "cause": cause, "idle_seconds": idle}
    return sleep.Night(
        initial=(1,),
        resumed=(2,),
        milliseconds={"initial": 1.0, "sleep": sleep_ms, "resumed": 1.0},
        gigabytes={"before": 1.0, "asleep": 1.0, "after": 1.0},
        residency=residency,
        swaps=[out, {"direction": "in", "cause": "needed", "idle_seconds": 3.0}],
        equal=equal,
    )


def slept(**changes: Any) -> dict[str, Any]:
    wanted = file().agent_sleep_resume
    return sleep.judge(wanted, night_of(**changes), limit_gb=None)


NO_SLEEP = ({"idle": 0.9}, {"sleep_ms": 29_999.0}, {"residency": "resident"}, {"equal": False}, {"cause": "asked"})


def test_a_sleep_that_was_one() -> None:
    """And some that were none."""
    found = slept()
    assert found["passed"]
    assert (found["metrics"]["swaps_detected"], found["metrics"]["restores_detected"]) == (1, 1)
    assert isinstance(found["metrics"]["coherence_score"], Unmeasured)
    for changes in (*NO_SLEEP, {"cause": "pressure"}):
        assert not slept(**changes)["passed"], changes


@pytest.mark.parametrize(("seconds", "passed"), [(1.0, True), (0.0, False)])
def test_a_sleep_whose_copies_took_no_time_fails(monkeypatch: pytest.MonkeyPatch, seconds: float, passed: bool) -> None:
    """The planted fault: the clock of a copy begins when it is over."""
    night, course, wanted = night_of(), MagicMock(), file().agent_sleep_resume
    night.copies.append(TimedCopy(what="The agent", way="out", nbytes=8, seconds=seconds))
    monkeypatch.setattr(sleep, "engine_for", MagicMock())
    monkeypatch.setattr(sleep, "_night", lambda *_: night)
    monkeypatch.setattr(sleep, "measured_link", lambda *_: Link(copies={"in": [(8, 1.0)], "out": [(8, 1.0)]}))
    found = sleep.run(course, file(), wanted)
    assert (found["passed"], found["link"]["out"]["transfers"]) == (passed, 1)
    assert passed or "faster than the link" in found["failures"][0]


def test_a_rest_begins_by_the_engines_clock() -> None:
    """The reply of a run may come late; counted from it the agent would have left before its threshold."""
    agent: Any = SimpleNamespace(describe=lambda: SimpleNamespace(idle_seconds=0.4))
    earliest = time.monotonic() - 0.4
    assert earliest <= sleep._resting_since(agent) <= time.monotonic() - 0.4


# -------------------------------------------------------------------------------------------------------- opening


def test_a_specific_key_beats_a_general_one() -> None:
    asked = file("pcie_flatline.ring_buffer_gb=1", "ring_buffer.capacity_gb=2", "hardware.vram_limit_gb=8")
    assert (asked.ring_gb, asked.limit_gb) == (1, 8)
    asked = file("pcie_flatline.ring_buffer_gb=null", "pcie_flatline.vram_limit_gb=6", "hardware.vram_limit_gb=8")
    assert (asked.ring_gb, asked.limit_gb) == (0.0026, 6)


def test_the_card_holds_the_ring_and_less_than_the_model() -> None:
    assert card_for(7 / 8, None, 2 * int(GIB)).allowed == GIB, "an eighth is for pages"
    small = card_for(7 / 8, 0.5, 2 * int(GIB))
    assert (small.allowed, small.imposed) == (int(0.45 * GIB), GIB / 2), "a tenth is for what a pass takes besides"
    shrunk = card_for(48.0, None, int(GIB))
    assert (shrunk.allowed, shrunk.shrunk) == (int(0.75 * GIB), True)


def test_a_port_that_is_taken_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} .*server.port"):
            endpoint(Server(port=port))
        settings = ("--set", f"server.port={port}", "--only", "pcie_flatline")
        assert (
            cli.main(["experiment", "validation", "--profile", "small", "--output-dir", str(tmp_path), *settings]) == 1
        )
    assert not list(tmp_path.glob("*.json"))
    with pytest.raises(UsageError, match=r"server\.host"):
        endpoint(Server(host="no such host"))


def test_an_answer_is_waited_for_so_long() -> None:
    assert within(5.0, lambda: 3) == 3
    with pytest.raises(ValueError, match="said"):
        within(5.0, lambda: (_ for _ in ()).throw(ValueError("said")))
    with pytest.raises(AnswerLate, match=r"server\.timeout_seconds"):
        within(0.01, lambda: time.sleep(0.5))


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("ring_buffer=null", "needs ring_buffer.capacity_gb"),
        ("agent_sleep_resume.sleep_duration_seconds=0.5", "has to be longer"),
        ("hardware.vram_limit_gb=0.001", "the imposed card has"),
        ("logit_equivalence.tolerance_norm=0", "tolerance_norm"),
        ("pcie_flatline.sustained_ratio=1.1", "sustained_ratio"),
        ("logit_equivalence.dtype=int8", "dtype"),
        ("logging.level=LOUD", "level"),
        ("server.port=70000", "port"),
    ],
)
def test_what_cannot_hold_is_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        file(setting)
    assert "\n" not in str(caught.value)


def test_one_test_alone_and_another_model() -> None:
    asked = chosen_tests(read("validation_smoke.yaml", ValidationFile), "pcie_flatline", "demo")
    enabled = {n: getattr(asked, n).enabled for n in ("logit_equivalence", "pcie_flatline", "agent_sleep_resume")}
    assert enabled == {"logit_equivalence": False, "pcie_flatline": True, "agent_sleep_resume": False}
    assert asked.pcie_flatline.model_id == "demo"
    with pytest.raises(UsageError, match="no section pcie_flatline"):
        chosen_tests(file("pcie_flatline=null"), "pcie_flatline", None)


# --------------------------------------------------------------------------------------------------- architectures


def test_an_architecture_is_a_folder_with_changed_sizes() -> None:
    own, sizes = split(["model.num_layers=2", "architecture.n_layer=2", "architecture.eos_token_id=null"])
    assert (own, sizes) == (["model.num_layers=2"], {"n_layer": 2, "eos_token_id": None})
    with architecture("gpt2", sizes) as folder:
        found = json.loads((Path(folder) / "config.json").read_text())
        assert (found["n_layer"], found["n_embd"], found["eos_token_id"]) == (2, 768, None)
        with architecture(f"{folder}/config.json", {}) as again:
            assert json.loads((Path(again) / "config.json").read_text()) == found
    assert not Path(folder).exists()
    with architecture("somebody/elsewhere", {}) as named:
        assert named == "somebody/elsewhere"


@pytest.mark.parametrize("name", shipped_architectures())
def test_a_shipped_architecture_has_its_known_size(name: str) -> None:
    """The size is that of the keys and values of a token in bytes, as the evaluation computes it."""
    with architecture(name, {}) as folder:
        found = json.loads((Path(str(folder)) / "config.json").read_text())
    if name == "gpt2":
        per_token = 2 * found["n_layer"] * found["n_embd"] * 4
    else:
        width = found["hidden_size"] // found["num_attention_heads"]
        per_token = 2 * found["num_hidden_layers"] * found["num_key_value_heads"] * width * 2
    expected = {
        "gpt2": 73728,
        "CodeLlama-34b-hf": 196608,
        "Llama-2-7b-hf": 524288,
        "Llama-2-13b-hf": 819200,
        "Llama-2-70b-hf": 327680,
    }
    assert per_token == expected.get(name, 131072)


@pytest.mark.parametrize(
    ("config", "sizes", "sentence"),
    [
        ("gpt2", {"layers": 2}, "gpt2 has no key layers"),
        (None, {"n_layer": 2}, "give that too"),
        ("./nowhere", {}, "There is no architecture"),
        ("somebody/elsewhere", {"n_layer": 2}, "not at hand"),
    ],
)
def test_an_architecture_that_cannot_be(config: str | None, sizes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence), architecture(config, sizes):
        pass


def test_an_amount_that_is_none_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "pressure", "--profile", "small", "--capacity", "80Foo"]) == 1
    assert "no amount of memory" in capsys.readouterr().err
