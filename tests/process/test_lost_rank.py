"""A rank of a split model is killed under a stop: one sentence, the engine begins anew, and the session comes back."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.cli.main import main
from djinn_jupyter.errors import EngineBroken, EngineUnavailable
from djinn_jupyter.link.registry import log_of, registry_folder
from djinn_jupyter.wire.logs import asked_by
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
PROMPT = [1, 5, 6, 7, 8]


@pytest.fixture
def model(runtime: Path, tmp_path: Path) -> Path:
    from tests.families import build

    build("llama", layers=3).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(model: Path, **options: Any) -> RemoteEngine:
    return dj.load(model, dtype="float32", device="cpu", threads=1, tensor_parallel=2, **options)


def ranks_of(engine: RemoteEngine) -> list[psutil.Process]:
    children = psutil.Process(engine.entry.pid).children()
    return [child for child in children if "djinn_jupyter.parallel.rank" in child.cmdline()]


def test_a_killed_rank_ends_in_a_sentence_and_the_session_comes_back(model: Path) -> None:
    engine = load(model)
    plain = engine.session("plain").run(PROMPT, max_new_tokens=6)
    session = engine.session("paris")
    session.breakpoint("z.1", when="step == 2")
    assert isinstance(session.run(PROMPT, max_new_tokens=6), Paused)
    (rank,) = ranks_of(engine)
    rank.send_signal(signal.SIGKILL)
    with pytest.raises((EngineBroken, EngineUnavailable)):
        session.resume()
    again = load(model)
    (log,) = registry_folder().glob("*.log")
    assert f"Rank 1 of 2, process {rank.pid}, was killed by signal 9, and no pass can go on" in log.read_text()
    assert ranks_of(again) != [rank]
    back = again.session("paris")
    assert isinstance(back.stop, Paused)
    assert back.resume().tokens == plain.tokens


def test_the_lines_of_a_rank_are_those_of_the_engine_with_the_request(model: Path) -> None:
    """Of two requests that take turns each layer of the other rank is told with its own."""
    engine = load(model, log_format="json", log_level="debug")
    (rank,) = ranks_of(engine)
    for name in ("anna", "bert"):
        with asked_by(f"%{name}"):
            engine.session(name).run(PROMPT, max_new_tokens=2)

    def told() -> list[dict[str, Any]]:
        written = log_of(engine.entry).read_text().splitlines()
        lines = [json.loads(line) for line in written if line.startswith("{")]
        return [line for line in lines if line["event"] == "pass.layer"]

    until(lambda: len(told()) >= 2 * (3 * 2 * 2), "the last layer is told")
    by = {pid: [line for line in told() if line["pid"] == pid] for pid in (engine.entry.pid, rank.pid)}
    of_the_engine, of_the_rank = (
        [(line["asked_by"], line["trace_id"], line["span_id"], line["verb"], line["layer"]) for line in lines]
        for lines in by.values()
    )
    assert of_the_rank == of_the_engine
    assert {line["rank"] for line in by[rank.pid]} == {1}
    assert {line["engine"] for line in by[rank.pid]} == {"model"}


def test_the_ranks_are_listed_and_end_with_an_engine_that_is_killed(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = load(model)
    assert main(["list"]) == 0
    assert "cpu x 2" in capsys.readouterr().out
    (rank,) = ranks_of(engine)
    os.kill(engine.entry.pid, signal.SIGKILL)
    rank.wait(60)
