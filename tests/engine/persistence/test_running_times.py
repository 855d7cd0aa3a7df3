"""The running time of persons outlives the engine, however it ends, and is that of the last day."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from djinn_jupyter.engine.session.table import DAY_SECONDS, STEP_SECONDS, RunningTime
from djinn_jupyter.remote.engine.running_times import TIMES, WRITTEN_SECONDS, RunningTimesFile
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.people import Quota
from djinn_jupyter.wire.replies import Finished
from tests.engine.desk import build_desk, tokens
from tests.engine.persistence.crashes import crashed, journal
from tests.engine.requests.house import House
from tests.families import build


class Clock:
    now = 1000 * STEP_SECONDS

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def begun(journal: Path, clock: Clock) -> tuple[RunningTimesFile, RunningTime]:
    journal.mkdir(parents=True, exist_ok=True)
    time = RunningTime(clock, clock)
    return RunningTimesFile(journal, time, clock), time


def test_the_next_engine_goes_on_and_forgets_what_is_a_day_old(tmp_path: Path, clock: Clock) -> None:
    file, time = begun(tmp_path / "box-0", clock)
    time.add("anna", 100.0)
    clock.now += 2 * STEP_SECONDS
    time.add("anna", 20.0)
    time.add(None, 3.0)
    file.write()
    _, after = begun(tmp_path / "box-0", clock)
    assert (after.seconds("anna"), after.seconds(None), after.seconds("bert")) == (120.0, 3.0, 0)
    clock.now += DAY_SECONDS - STEP_SECONDS
    _, later = begun(tmp_path / "box-0", clock)
    assert later.seconds("anna") == 20.0


def test_it_is_written_now_and_then_while_time_is_counted(tmp_path: Path, clock: Clock) -> None:
    """A killed engine writes nothing at its end."""
    file, time = begun(tmp_path / "box-0", clock)
    time.add("anna", 7.0)
    file.attend()
    assert begun(tmp_path / "box-0", clock)[1].seconds("anna") == 0.0
    clock.now += WRITTEN_SECONDS
    file.attend()
    assert begun(tmp_path / "box-0", clock)[1].seconds("anna") == 7.0


def test_that_of_engines_that_ended_counts_once_and_of_one_that_runs_not(tmp_path: Path, clock: Clock) -> None:
    for name in ("box-0", "box-1", "box-2"):
        file, time = begun(tmp_path / name, clock)
        time.add("anna", 10.0)
        file.write()
    (tmp_path / "box-1").rmdir()  # its sessions were taken over
    assert begun(tmp_path / "box-0", clock)[1].seconds("anna") == 20.0
    assert begun(tmp_path / "box-0", clock)[1].seconds("anna") == 20.0
    assert sorted(path.name for path in (tmp_path / TIMES).iterdir()) == ["box-0", "box-2"]


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"step_seconds":1.0,"persons":{"anna":[[1000,5.0]]}}', b"[]"])
def test_a_file_that_cannot_be_read_counts_for_nothing(
    tmp_path: Path, clock: Clock, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / TIMES).mkdir()
    (tmp_path / TIMES / "box-0").write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        file, time = begun(tmp_path / "box-0", clock)
    assert time.seconds("anna") == 0.0
    assert "counts for nothing" in caplog.text
    time.add("anna", 1.0)
    file.write()
    assert begun(tmp_path / "box-0", clock)[1].seconds("anna") == 1.0


def test_the_quota_of_a_day_holds_at_the_next_engine(tmp_path: Path) -> None:
    """The files are those of an engine that is killed."""
    prompt = tokens(9, seed=5)
    first = build_desk(build("llama"))
    journal(first, tmp_path / "first")
    house = House(first)
    house.ask("anna", ask.Open(session="a"))
    assert isinstance(house.ask("anna", ask.Run(session="a", tokens=prompt, max_new_tokens=2)), Finished)
    times = first.engine.persistence._times
    times._written_at -= WRITTEN_SECONDS
    house.ask("anna", ask.Open(session="a"))
    used = first.engine.running_time.seconds("anna")
    assert used > 0

    second = build_desk(build("llama"))
    journal(second, crashed(tmp_path / "first", tmp_path / "second"))
    assert second.engine.running_time.seconds("anna") == pytest.approx(used)
    second.engine.apply_owner_budgets(lambda person: Quota(running=0))
    house = House(second)
    house.ask("anna", ask.Open(session="a"))
    refused = house.ask("anna", ask.Run(session="a", tokens=prompt, max_new_tokens=2))
    assert refused.code == "OverQuota"
    for desk in (first, second):
        desk.close_all()
        desk.engine.persistence.close(desk.engine.sessions)
