"""Engines of a real Ray cluster whose journal is in a store that speaks S3, a server of moto's: machines that share no
folder are killed under work and drained. `make cluster-test` installs both."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.cli.main import main
from djinn_jupyter.errors import DjinnError
from tests.process.ray_machines import MACHINES, Machines, at, cluster, drained, needs_ray
from tests.process.s3_server import Server, needs_s3
from tests.waiting import until

PROMPT = "The capital of France is"
JOURNAL = "s3://lab/djinn"
KILLS, TOKENS = 2, 60
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_ray, needs_s3]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The store, and the environment by which Ray's processes find it."""
    server = Server()
    with pytest.MonkeyPatch.context() as patch:
        server.name_in(patch)
        server.make_bucket()
        yield server
    server.stop()


@pytest.fixture(scope="module")
def machines(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with cluster(tmp_path_factory.mktemp("person"), apart=True) as machines:
        yield machines


@pytest.fixture
def placed(machines: Machines) -> Iterator[RemoteEngine]:
    machines.refill()
    assert main(["cluster", "load", "demo", "--device", "cpu", "--threads", "1", f"--shared-journal={JOURNAL}"]) == 0
    engine = dj.load("demo", device="cpu", at="cluster")
    yield engine
    for session in engine.sessions():
        engine.session(session.name).close()
    assert main(["cluster", "stop", "demo"]) == 0


class Answered(threading.Thread):
    """Runs a line token by token; `tokens` are those that were answered, across the deaths of machines."""

    def __init__(self, session: dj.RemoteSession) -> None:
        super().__init__()
        self._session = session
        self.tokens = list(session.run(PROMPT, max_new_tokens=1).tokens)
        self.error: DjinnError | None = None

    def reach(self, more: int) -> None:
        """Return when so many more tokens were answered."""
        few = len(self.tokens) + more
        until(lambda: len(self.tokens) >= few or not self.is_alive(), "more tokens")
        assert self.error is None

    def run(self) -> None:
        try:
            while len(self.tokens) < TOKENS:
                self.tokens += self._session.run([], max_new_tokens=1, extend=True, ignore_eos=True).tokens
        except DjinnError as error:
            self.error = error


def test_machines_are_killed_under_work_and_nothing_is_lost_or_done_twice(
    placed: RemoteEngine, machines: Machines
) -> None:
    plain = placed.session("plain", fresh=True).run(PROMPT, max_new_tokens=TOKENS, ignore_eos=True).tokens
    draw, session = random.Random(15), placed.session("line", fresh=True)
    answered = Answered(session)
    answered.start()
    for _ in range(KILLS):
        answered.reach(draw.randrange(2, 15))
        machines.kill(at(dj.load("demo", device="cpu", at="cluster")))
        answered.reach(2)  # elsewhere: one may have been answered just before
        machines.refill()
    answered.join(400)
    assert answered.error is None
    assert tuple(answered.tokens) == plain
    assert session.describe().exactness == "recomputed"
    assert placed.session("plain").describe().tokens == session.describe().tokens


def test_a_machine_is_drained_and_its_sessions_come_back_recomputed_and_say_so(
    placed: RemoteEngine, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    session = placed.session("paris", fresh=True)
    plain = session.run(PROMPT, max_new_tokens=6)
    session.breakpoint("resid_post.4", when="step == 2")
    hidden = session.run(PROMPT, max_new_tokens=6).hidden.tobytes()
    drained(placed, capsys)
    assert session.describe().exactness == "recomputed"
    assert session.stop.hidden.tobytes() == hidden
    session.accept_recomputed()
    assert session.resume().logits.tobytes() == plain.logits.tobytes()


def test_a_session_moves_to_a_machine_with_all_its_bits(placed: RemoteEngine, machines: Machines) -> None:
    session = placed.session("paris", fresh=True)
    plain = session.run(PROMPT, max_new_tokens=6)
    session.breakpoint("resid_post.4", when="step == 2")
    hidden = session.run(PROMPT, max_new_tokens=6).hidden.tobytes()
    (other,) = {*MACHINES} - {at(placed)}
    there = dj.beside(placed, other)
    moved = session.move(there)
    assert placed.sessions() == ()
    assert moved.describe().exactness == "exact"
    assert moved.stop.hidden.tobytes() == hidden
    assert moved.resume().logits.tobytes() == plain.logits.tobytes()
    moved.checkpoint("noon")
    assert placed.restore("noon", "paris").describe().exactness == "exact"
    moved.close()
    assert main(["cluster", "stop", str(there.entry.identity)]) == 0
