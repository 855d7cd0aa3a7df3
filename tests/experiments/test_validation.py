"""The meaning of `validation`'s figures, on samples made by hand; impossible settings are refused before the run."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter.cli.main as cli
from djinn_jupyter.amounts import GIB
from djinn_jupyter.errors import UsageError
from djinn_jupyter.experiments.configuration.architecture import architecture, shipped, split
from djinn_jupyter.experiments.configuration.reading import read
from djinn_jupyter.experiments.configuration.validation import Server, ValidationFile, chosen
from djinn_jupyter.experiments.course import Unmeasured
from djinn_jupyter.experiments.memory import Curve, MemorySample
from djinn_jupyter.experiments.validation import flatline, logit_equivalence, sleep
from djinn_jupyter.experiments.validation.beside import Streamed
from djinn_jupyter.experiments.validation.opening import AnswerLate, card_for, endpoint, within
from djinn_jupyter.wire.nouns import LayerCopy

SMALL = "validation_small.yaml"
MIB = 1 << 20


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
    assert wanted is not None
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


def test_each_tolerance_counts() -> None:
    far = row(*((index, 0.05) for index in range(5)))
    assert judged(ring=far, same_device=False)["is_match"] is False, "each 0.05, the norm 0.11"
    assert judged("logit_equivalence.tolerance_norm=0.2", ring=far, same_device=False)["passed"]
    tight = ("logit_equivalence.tolerance_norm=0.2", "logit_equivalence.tolerance_max_diff=0.01")
    assert not judged(*tight, ring=far, same_device=False)["passed"]


def test_predictions_count_where_they_are_asked_for() -> None:
    loose = ("logit_equivalence.tolerance_norm=9", "logit_equivalence.tolerance_max_diff=9")
    swapped = row((9, -1.5))
    assert not judged(*loose, ring=swapped, same_device=False)["passed"]
    looser = (*loose, "logit_equivalence.pass_if_predictions_match=false")
    assert judged(*looser, ring=swapped, same_device=False)["passed"]
    assert not judged(tokens=(2,))["preds_match"]


@pytest.mark.parametrize(
    ("moved", "streamed"),
    [
        ((0,) * 6, 100),
        ((100, 0, 0, 0, 0, 0), 100),
        ((99, 101, 100, 100, 100, 100), 100),
        ((101,) * 6, 100),
        ((0,) * 6, 0),
    ],
    ids=["nothing", "the first pass alone", "one layer late", "too much", "nothing streams"],
)
def test_every_pass_moves_exactly_what_streams(moved: tuple[int, ...], streamed: int) -> None:
    assert judged()["passed"]
    assert not judged(moved=moved, streamed=streamed)["passed"]


# ------------------------------------------------------------------------------------------------------- flatline


def flow(
    rates: list[float],
    *,
    seconds: float = 10.0,
    passes: int = 1,
    streamed: int | None = None,
    used: int = 0,
    runs: tuple[tuple[int, ...], ...] = ((1,), (1,)),
) -> Any:
    streamed = len(rates) * MIB // passes if streamed is None else streamed
    copies = tuple(
        LayerCopy(number=n, layer=0, bytes_moved=MIB, seconds=1 / rate, begun=float(n), stalled_seconds=0.0)
        for n, rate in enumerate(rates, 1)
    )
    curve = Curve([MemorySample(seconds=0.0, device=None, process=0, books=used, used=used)])
    return flatline.Flow(
        copies=copies, passes=passes, seconds=seconds, streamed=streamed, curve=curve, runs=runs, rates=(1.0,)
    )


def flat(rates: list[float], *, ratio: float = 0.8, fastest: float = 1000.0, **more: Any) -> dict[str, Any]:
    wanted = file(f"pcie_flatline.sustained_ratio={ratio}").pcie_flatline
    assert wanted is not None
    bar = flatline.Bar(required=100.0, fastest=fastest, measured_here=True)
    limit = more.pop("limit_gb", None)
    return flatline.judge(wanted, bar, flow(rates, **more), limit_gb=limit)


def test_the_share_of_copies_above_the_bar_decides() -> None:
    rates = [100.0, 200.0, 300.0, 400.0, 50.0]
    found = flat(rates)
    assert (found["passed"], found["samples_above_ratio"], found["bandwidth_mbps"]) == (True, 0.8, 200.0)
    assert not flat(rates, ratio=0.9)["passed"]


def test_the_fastest_copy_by_hand_may_be_one_made_while_nothing_is_computed() -> None:
    wanted = file().pcie_flatline
    assert wanted is not None
    copies, alone = ((MIB, 0.01), (MIB, 0.002)), ((MIB, 0.001),)
    by_hand = Streamed(weights=2 * MIB, copies=copies, alone=alone, rounds=(1.0,), tokens=(1,))
    bar = flatline._bar(wanted, by_hand, gpu=False)
    assert (bar.fastest, bar.required) == pytest.approx((1000.0, flatline.MARGIN * 100.0))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seconds": 3.9}, "sampled for less"),
        ({"passes": 3, "streamed": 2 * MIB}, "other bytes than those that stream"),
        ({"passes": 2, "streamed": MIB}, "other bytes than those that stream"),
        ({"fastest": 150.0}, "faster than the fastest by hand"),
        ({"runs": ((1, 2), (1, 3))}, "made different tokens"),
        ({"used": 2 * MIB, "limit_gb": 1 / 1024}, "more than its limit"),
    ],
)
def test_what_else_fails_a_flatline(changes: dict[str, Any], sentence: str) -> None:
    found = flat([200.0, 200.0, 200.0], **changes)
    assert not found["passed"]
    assert sentence in " ".join(found["failures"])


def test_nothing_copied_is_no_flatline() -> None:
    found = flat([])
    assert (found["passed"], found["bandwidth_mbps"]) == (False, None)


def test_what_a_share_of_copies_sustains() -> None:
    rates = [float(n) for n in range(1, 11)]
    assert (flatline.sustained(rates, 0.8), flatline.sustained(rates, 1.0)) == (3.0, 1.0)
    assert sum(rate >= flatline.sustained(rates, 0.8) for rate in rates) == 8


# ---------------------------------------------------------------------------------------------------------- sleep


def night_of(
    *, idle: float = 1.5, sleep_ms: float = 3000.0, residency: str = "host", equal: bool = True
) -> sleep.Night:
    out = {"direction": "out", "cause": "idleness", "idle_seconds": idle}
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
    assert wanted is not None
    return sleep.judge(wanted, night_of(**changes), limit_gb=None)


def test_a_sleep_that_was_one() -> None:
    found = slept()
    assert found["passed"]
    assert (found["metrics"]["swaps_detected"], found["metrics"]["restores_detected"]) == (1, 1)
    assert isinstance(found["metrics"]["coherence_score"], Unmeasured)


@pytest.mark.parametrize("changes", [{"idle": 0.9}, {"sleep_ms": 2999.0}, {"residency": "resident"}, {"equal": False}])
def test_a_sleep_that_was_none(changes: dict[str, Any]) -> None:
    assert not slept(**changes)["passed"]


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
    asked = chosen(read("validation_smoke.yaml", ValidationFile), "pcie_flatline", "demo")
    enabled = {n: getattr(asked, n).enabled for n in ("logit_equivalence", "pcie_flatline", "agent_sleep_resume")}
    assert enabled == {"logit_equivalence": False, "pcie_flatline": True, "agent_sleep_resume": False}
    assert asked.pcie_flatline is not None
    assert asked.pcie_flatline.model_id == "demo"
    with pytest.raises(UsageError, match="no section pcie_flatline"):
        chosen(file("pcie_flatline=null"), "pcie_flatline", None)


# --------------------------------------------------------------------------------------------------- architectures


def test_an_architecture_is_a_folder_with_changed_sizes() -> None:
    own, sizes = split(["model.num_layers=2", "architecture.n_layer=2", "architecture.eos_token_id=null"])
    assert (own, sizes) == (["model.num_layers=2"], {"n_layer": 2, "eos_token_id": None})
    with architecture("gpt2", sizes) as folder:
        assert folder is not None
        found = json.loads((Path(folder) / "config.json").read_text())
        assert (found["n_layer"], found["n_embd"], found["eos_token_id"]) == (2, 768, None)
        with architecture(f"{folder}/config.json", {}) as again:
            assert again is not None
            assert json.loads((Path(again) / "config.json").read_text()) == found
    assert not Path(folder).exists()
    with architecture("somebody/elsewhere", {}) as named:
        assert named == "somebody/elsewhere"


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_architecture_has_its_known_size(name: str) -> None:
    """The size is that of the keys and values of a token in bytes, as the evaluation computes it."""
    with architecture(name, {}) as folder:
        found = json.loads((Path(str(folder)) / "config.json").read_text())
    if name == "gpt2":
        per_token = 2 * found["n_layer"] * found["n_embd"] * 4
    else:
        width = found["hidden_size"] // found["num_attention_heads"]
        per_token = 2 * found["num_hidden_layers"] * found["num_key_value_heads"] * width * 2
    expected = {"gpt2": 73728, "Llama-2-7b-hf": 524288, "Llama-2-13b-hf": 819200, "Llama-2-70b-hf": 327680}
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
