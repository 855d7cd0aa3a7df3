"""docs/cluster.md with a real Ray cluster, a head and two machines on addresses of this machine's loopback:
`make cluster-test` installs Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_evaluation.timing import checkpoint_cost
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.cli.main import main
from djinn_jupyter.errors import ModelNotFound, UsageError
from djinn_jupyter.link.channel import SocketChannel
from djinn_jupyter.remote.addresses import key_folder
from djinn_jupyter.wire.own import host_name
from tests.evaluation.test_afar import COST
from tests.process.ray_machines import MACHINES, Machines, at, cluster, drained, needs_ray
from tests.waiting import until

PROMPT = "The capital of France is"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_ray,
]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with cluster(tmp_path_factory.mktemp("person")) as machines:
        yield machines


@pytest.fixture
def placed(machines: Machines, tmp_path: Path) -> Iterator[RemoteEngine]:
    """The demo in the cluster, with a shared journal."""
    assert main(["cluster", "load", "demo", "--device", "cpu", f"--shared-journal={tmp_path}"]) == 0
    yield dj.load("demo", device="cpu", at="cluster")
    assert main(["cluster", "stop", "demo"]) == 0
    loading._channels.close()  # one that is left would follow its engine to the next, which it keeps in use


def test_an_engine_is_placed_found_and_spoken_to_directly(
    placed: RemoteEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert at(placed) in MACHINES
    session = placed.session("main", fresh=True)
    session.run(PROMPT, max_new_tokens=3)
    assert session.describe().owner == "anna"
    assert [one.name for one in dj.load("demo", device="cpu", at="cluster").sessions()] == ["main"]
    capsys.readouterr()
    main(["cluster", "list"])
    assert f"at tcp://{at(placed)}:" in capsys.readouterr().out
    with pytest.raises(UsageError, match="already runs with stops_kept = 64, not 3"):
        dj.load("demo", device="cpu", stops_kept=3, at="cluster")


def test_a_notebook_goes_on_bit_for_bit_on_another_machine_when_the_engine_s_dies(
    placed: RemoteEngine, machines: Machines
) -> None:
    session = placed.session("paris", fresh=True)
    plain = session.run(PROMPT, max_new_tokens=6)
    session.breakpoint("resid_post.4", when="step == 2")
    stop = session.run(PROMPT, max_new_tokens=6)
    hidden, died = stop.hidden.tobytes(), at(placed)
    machines.kill(died)
    assert session.describe().stopped_at == "resid_post.4"  # it waits while the line is down
    assert session.stop.hidden.tobytes() == hidden
    there = dj.load("demo", device="cpu", at="cluster")
    assert at(there) != died
    assert isinstance(placed.channel, SocketChannel)
    assert placed.channel.entry.place == there.entry.place  # by which it is named from now on
    session.accept_recomputed()
    resumed = session.resume()
    assert resumed.tokens == plain.tokens
    assert resumed.logits.tobytes() == plain.logits.tobytes()


def test_a_collection_is_here_and_goes_on_when_its_engine_s_machine_dies(
    placed: RemoteEngine, machines: Machines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its shards are handed over by the first engine and the next, none twice."""
    machines.refill()
    folder, died = tmp_path_factory.mktemp("acts"), at(placed)
    asked: dict[str, Any] = {"prompts": [[5, 6, 7, number] for number in range(4)], "sites": "resid_post.4"}
    whole = placed.collect(**asked, shard_prompts=1, to=folder / "whole")
    done: list[int] = []

    def kill(count: int) -> None:
        done.append(count)
        if count == 2 and done.count(2) == 1:
            machines.kill(died)

    acts = placed.collect(**asked, shard_prompts=1, to=folder / "cut", on_progress=kill)
    assert at(dj.load("demo", device="cpu", at="cluster")) != died
    for one, other in zip(whole.shards, acts.shards, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()
    assert placed.sessions() == ()


def test_an_engine_that_nobody_uses_is_let_go(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "load", "demo", "--device", "cpu", "--idle-seconds", "0.5"]) == 0

    def gone() -> bool:
        capsys.readouterr()
        main(["cluster", "list"])
        return "No engine is in the cluster." in capsys.readouterr().out

    until(gone, "its end")


def test_the_key_of_an_engine_is_forgotten_when_it_has_ended_and_not_before(machines: Machines) -> None:
    assert main(["cluster", "load", "demo", "--device", "cpu"]) == 0
    engine = dj.load("demo", device="cpu", at="cluster")
    place, trusted = engine.entry.place, key_folder().folder("trusted")
    ended = trusted / "127.0.0.9:5556"
    shutil.copy(trusted / place, ended)
    os.utime(ended, (0, 0))
    dj.load("demo", device="cpu", at="cluster")
    os.utime(trusted / place, (0, 0))
    assert place in key_folder().names("trusted")
    assert ended.name not in key_folder().names("trusted")
    assert main(["cluster", "stop", "demo"]) == 0
    assert place not in key_folder().names("trusted")


def test_a_model_that_is_not_there_is_told_and_leaves_nothing(
    machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelNotFound, match="no-such-model"):
        dj.load("no-such-model", at="cluster")
    capsys.readouterr()
    main(["cluster", "list"])
    assert capsys.readouterr().out == "No engine is in the cluster.\n"


def test_the_engines_of_a_drained_machine_go_on_elsewhere_with_their_sessions(
    placed: RemoteEngine, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.refill()
    session = placed.session("paris", fresh=True)
    plain = session.run(PROMPT, max_new_tokens=6)
    session.breakpoint("resid_post.4", when="step == 2")
    hidden = session.run(PROMPT, max_new_tokens=6).hidden.tobytes()
    drained(placed, capsys)
    assert session.describe().exactness == "exact"
    assert session.stop.hidden.tobytes() == hidden
    assert session.resume().logits.tobytes() == plain.logits.tobytes()


def test_a_drain_moves_the_engines_that_find_a_place_and_leaves_the_others_serving(
    machines: Machines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two engines leave a machine, and there is room for one; the other goes when there is more."""
    machines.refill()
    machines.add("127.0.0.5", cpus=2)
    engines = [_placed_on("127.0.0.5", copy, tmp_path) for copy in (1, 2)]
    _placed_on("127.0.0.4", 3, tmp_path)
    sessions = [engine.session("paris", fresh=True) for engine in engines]
    plain = [session.run(PROMPT, max_new_tokens=2).logits.tobytes() for session in sessions]
    capsys.readouterr()
    assert main(["cluster", "drain", "127.0.0.5"]) == 1
    said = capsys.readouterr().out
    assert "demo (device cpu) is on " in said
    assert "at tcp://127.0.0.3:" in said
    assert "demo (device cpu, copy 2) stays and serves on, because it needs 1 CPU, and no other machine has" in said
    for address in MACHINES:
        assert f"({address}) has 0 CPUs" in said
    assert said.endswith("): end something there or add a machine, then drain 127.0.0.5 again.\n")
    for session, logits in zip(sessions, plain, strict=True):
        assert session.describe().exactness == "exact"
        assert session.run(PROMPT, max_new_tokens=2).logits.tobytes() == logits
    assert at(dj.load("demo", device="cpu", copy=2, at="cluster")) == "127.0.0.5"
    assert main(["cluster", "stop", "demo (device cpu, copy 3)"]) == 0
    assert main(["cluster", "drain", "127.0.0.5"]) == 0
    assert "demo (device cpu, copy 2) is on " in capsys.readouterr().out
    assert sessions[1].describe().exactness == "exact"
    assert sessions[1].run(PROMPT, max_new_tokens=2).logits.tobytes() == plain[1]
    for copy in ("", ", copy 2"):
        assert main(["cluster", "stop", f"demo (device cpu{copy})"]) == 0


def _placed_on(address: str, copy: int, folder: Path) -> RemoteEngine:
    """Return an engine with a shared journal that Ray has placed on one machine."""
    from djinn_jupyter.link.starting import StartCallbacks
    from djinn_jupyter.remote.cluster import machines
    from djinn_jupyter.remote.cluster.placement import SetAside, attached, await_entry, place
    from djinn_jupyter.settings import Identity, Options, ProcessOptions

    with attached():
        needs, there = SetAside(cpus=1, gpus=0, memory_bytes=0), machines.named(address)["NodeID"]
        identity, options = Identity(model="demo", device="cpu", copy=copy), Options(shared_journal=str(folder))
        made = place(identity, options, ProcessOptions(), needs, on=there)
        await_entry(made, needs, StartCallbacks(line=print, second=print))
        assert made.machine() == there
    return dj.load("demo", device="cpu", copy=copy, at="cluster")


def test_a_session_moves_to_a_machine_by_its_name(
    placed: RemoteEngine, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine is placed there first, and found again: there and back, to the last bit."""
    machines.refill()
    session = placed.session("paris", fresh=True)
    plain = session.run(PROMPT, max_new_tokens=6)
    session.breakpoint("resid_post.4", when="step == 2")
    hidden, before = session.run(PROMPT, max_new_tokens=6).hidden.tobytes(), at(placed)
    (other,) = {*MACHINES} - {before}
    with pytest.raises(UsageError, match=r"No machine is named gpu-9; there are: .*\(127\.0\.0\.3\)"):
        dj.beside(placed, "gpu-9")
    with pytest.raises(UsageError, match=f"More than one machine is named {host_name()}; there are: "):
        dj.beside(placed, host_name())
    with pytest.raises(UsageError, match=r"127\.0\.0\.2 has not what an engine of demo needs here \(1 CPU\)"):
        dj.beside(placed, "127.0.0.2")
    with pytest.raises(UsageError, match="is in that engine already"):
        session.move(dj.beside(placed, before))
    there = dj.beside(placed, other)
    assert {*MACHINES} < {*there.entry.machines}
    assert (at(there), there.entry.identity.copy) == (other, 2)
    assert dj.beside(placed, "2").entry.commands == there.entry.commands
    moved = session.move(there)
    assert placed.sessions() == ()
    assert moved.stop.hidden.tobytes() == hidden
    back = moved.move(dj.beside(there, before))
    assert [one.name for one in placed.sessions()] == ["paris"]
    assert back.describe().exactness == "exact"
    assert back.resume().logits.tobytes() == plain.logits.tobytes()
    assert main(["cluster", "stop", str(there.entry.identity)]) == 0


def test_an_experiment_measures_the_engine_of_the_cluster(machines: Machines, tmp_path: Path) -> None:
    machines.refill()
    assert main(["cluster", "load", "demo", "--device", "cpu", "--threads", "1", "--page-positions", "16"]) == 0
    chosen = [word for setting in COST for word in ("--set", setting)]
    there = ["--server", "cluster", "--output-dir", str(tmp_path)]
    assert main(["experiment", "checkpoint-cost", "--profile", "small", *there, *chosen]) == UNDECIDED
    found = json.loads((tmp_path / checkpoint_cost.FILE).read_text())
    assert found["neighbour_tokens_per_s"]["alone"] > 0
    assert found["reached_over_a_line"]["round_trip_ms"] > 0
    assert dj.connect("cluster").sessions() == ()
    assert main(["cluster", "stop", "demo"]) == 0


def test_an_engine_that_no_other_machine_can_have_stays(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    machines.refill()
    assert main(["cluster", "load", "demo", "--device", "cpu"]) == 0
    where = at(dj.load("demo", device="cpu", at="cluster"))
    capsys.readouterr()
    assert main(["cluster", "drain", where]) == 1
    assert "stays, because it has no --shared-journal" in capsys.readouterr().out
    assert main(["cluster", "drain", "127.0.0.99"]) == 1
    assert "No machine is named 127.0.0.99" in capsys.readouterr().err
    assert main(["cluster", "stop", "demo"]) == 0


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("8.8.8.8", "is no closed address"),
        ("0.0.0.0", "is no closed address"),
        ("127.0.0.1", "give 127.0.0.2"),
        ("gpu-box", "is no IP address"),
    ],
)
def test_a_cluster_begins_on_closed_addresses_alone(host: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", "--host", host]) == 1
    assert said in capsys.readouterr().err


def test_a_cluster_that_does_not_begin_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left of one that has not begun in time would have the next attempt fail otherwise."""
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback\nException: timed out during startup.\n")
    monkeypatch.setattr(subprocess, "run", lambda *words, **more: failed)
    assert main(["cluster", "start", "--host", "127.0.0.2"]) == 1
    said = "Ray does not start (Exception: timed out during startup). `ray stop` ends what is left of it"
    assert said in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.9:1")
    assert main(["cluster", "list"]) == 1
    assert (
        "No Ray cluster answers at 127.0.0.9:1, which RAY_ADDRESS names (connection refused)."
        in capsys.readouterr().err
    )
