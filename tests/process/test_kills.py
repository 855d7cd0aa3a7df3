"""An engine process is killed with -9 at random moments of a running workload, again and again: no session is lost."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from djinn_evaluation.machine import computed_on
from djinn_jupyter.api.engine import RemoteEngine, await_end
from djinn_jupyter.api.loading import attach
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.nouns import Sampling, SessionDescription
from djinn_jupyter.wire.registry import Ready, decode_notice
from tests.engine.desk import Desk, tokens
from tests.engine.persistence.crashes import last_image
from tests.engines import end_all
from tests.families import build
from tests.process.diary import NEVER, Diary
from tests.process.nursery import Nursery
from tests.waiting import until
from tests.widgets import samples

pytestmark = pytest.mark.processes
log = logging.getLogger(__name__)
PROMPTS = [tokens(12 + n, seed=n) for n in range(3)]
NEW = 40
SEED = 11
STOP_AT = 3
FORCING = (0.0, 0.03, 0.1)  # seconds that the disk takes to confirm something


class Twin:
    """The lines as they are in an engine that is never killed."""

    def __init__(self, model: Path) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in the engines; and weights from the same file, whose alignment shows in the bits
        desk = Desk(open_engine(EngineConfig(model=str(model), dtype="float32", device=computed_on())))
        self.plain = [self._line(desk, prompt) for prompt in PROMPTS]
        drawn = Sampling(temperature=1.0, seed=SEED)
        self.drawn = [self._line(desk, prompt, sampling=drawn) for prompt in PROMPTS]
        self.edited = [self._edited(desk, prompt) for prompt in PROMPTS]
        torch.set_num_threads(threads)

    def _line(self, desk: Desk, prompt: tuple[int, ...], **options: Any) -> tuple[tuple[int, ...], torch.Tensor]:
        desk.open()
        made = desk.outcome(desk.run(prompt, new=NEW, **options))
        return (*prompt, *made.tokens), made.logits

    def _edited(self, desk: Desk, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], torch.Tensor]:
        desk.open()
        desk.stop_at(STOP_AT, when="step == 1")
        desk.run(prompt, new=NEW)
        desk.edit(Scale(factor=0.5))
        made = desk.outcome(desk.resume(free=True))
        return (*prompt, *made.tokens), made.logits

    @staticmethod
    def beginning(lines: list[tuple[tuple[int, ...], torch.Tensor]], begun: tuple[int, ...]) -> bool:
        return any(line[: len(begun)] == begun for line, _ in lines)


class House:
    """Engines of one model, one after the other; each is killed."""

    def __init__(self, model: Path) -> None:
        self.model, self._nursery = model, Nursery()

    def engine(self, forcing: float | None = None) -> RemoteEngine:
        return self.engines(1, forcing)[0]

    def engines(self, count: int, forcing: float | None = None) -> list[RemoteEngine]:
        """Start engines at the same time. `forcing` is the seconds that the disk takes to confirm a write."""
        options = ("--model", str(self.model), "--dtype", "float32", "--device", computed_on(), "--threads=1")
        told = self._nursery.start(count, *options, forcing=forcing)
        notices = [decode_notice(line.encode()) for line in told]
        assert all(isinstance(notice, Ready) for notice in notices), notices
        return [attach(notice.entry) for notice in notices if isinstance(notice, Ready)]

    def end(self) -> None:
        end_all()
        self._nursery.end()


@pytest.fixture
def house(runtime: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    """The house of a Llama where no other family is asked for."""
    build(getattr(request, "param", "llama")).save_pretrained(tmp_path / "model")
    house = House(tmp_path / "model")
    yield house
    house.end()


def work(engine: RemoteEngine, diary: Diary, turn: int) -> None:
    """Make line after line, with edits, breakpoints and forks, until the engine dies."""
    session = RemoteSession(engine.channel, diary.name)
    drawn = {"temperature": 1.0, "seed": SEED} if diary.name == "drawn" else {}
    try:
        while True:
            diary.fork(session)
            diary.arm(session)
            with diary.asking("move"):
                diary.moved(session.run(PROMPTS[turn % 3], max_new_tokens=NEW, ignore_eos=True, **drawn))
            if diary.name == "edited":
                with diary.asking("edit"):
                    session.edit(Scale(factor=0.5))
                    diary.edits += 1
                diary.arm(session)
                with diary.asking("move"):
                    diary.moved(session.resume(free=True))
            turn += 1
    except EngineUnavailable:
        return


NAMES = ("plain", "drawn", "edited")


def goes_on(engine: RemoteEngine, diary: Diary, twin: Twin) -> None:
    """Check a session found in any state: its tokens begin a twin's line, and end as that does, to the last bit."""
    name = diary.name
    session = engine.session(name)
    lines = {"plain": twin.plain, "drawn": twin.drawn, "edited": [*twin.edited, *twin.plain]}[name]
    described = session.describe()
    if described.tokens == 0:
        return
    if described.state == "paused":
        assert Twin.beginning(lines, tuple(session.stop.tokens))
        ended = session.resume(free=True)
    elif name == "drawn":
        ended = drawn_to_the_end(session, lines)
    else:
        begun = line_of(session)
        assert Twin.beginning(lines, begun), begun
        prompt = next(p for p in PROMPTS if begun[: len(p)] == p and Twin.beginning(lines, begun))
        left = len(prompt) + NEW - len(begun)
        ended = session.run([], extend=True, max_new_tokens=left, ignore_eos=True, free=True) if left else None
    if ended is not None:
        assert isinstance(ended, Finished)
        diary.moved(ended)
        whole = (*ended.prompt_tokens, *ended.tokens)
        logits = torch.from_numpy(session.logits().copy())
        assert any(whole == line and torch.equal(logits, end) for line, end in lines), (name, whole)


def drawn_to_the_end(session: RemoteSession, lines: list[tuple[tuple[int, ...], torch.Tensor]]) -> Any:
    """Make the same draws again: go back by a token, then on."""
    begun = line_of(session)
    assert Twin.beginning(lines, begun), begun
    new = len(begun) - next(len(p) for p in PROMPTS if begun[: len(p)] == p)
    if not new:
        return None
    assert isinstance(session.back(1, by="token"), Paused)
    return session.resume(free=True)


def line_of(session: RemoteSession) -> tuple[int, ...]:
    """All tokens of an idle session, read off a fork that runs nothing new."""
    fork = session.fork("look")
    try:
        stop = fork.run([], extend=True, max_new_tokens=0, ignore_eos=True, free=True)
        assert isinstance(stop, Finished)
        return tuple(stop.prompt_tokens)
    finally:
        fork.close()


def kills(house: House, count: int, seed: int) -> Counter[str]:
    """Return the counts: kills, acknowledged operations, sessions that came back exact, or recomputed."""
    counted: Counter[str] = Counter()
    twin, chance = Twin(house.model), random.Random(seed)
    diaries = [Diary(name) for name in NAMES]
    engine = house.engine()
    for name in NAMES:
        engine.session(name)
    engine.session("edited").breakpoint(STOP_AT, when="step == 1")
    kill(engine)  # with nothing but what was just answered
    found_at_work = 0
    for turn in range(count):
        engine = house.engine(forcing=FORCING[turn % 3])
        assert {one.holder for one in engine.sessions()} == {None}
        counted.update(one.exactness for one in engine.sessions() if one.tokens)
        for diary in diaries:
            diary.check(engine)
        assert [b.when for b in engine.session("edited").breakpoints() if b.when != NEVER] == ["step == 1"]
        found_at_work += any(one.tokens for one in engine.sessions())
        for diary in diaries:
            diary.begin_anew(engine)
            goes_on(engine, diary, twin)
        with ThreadPoolExecutor() as workers:
            at_work = [workers.submit(work, engine, diary, turn) for diary in diaries]
            time.sleep(chance.uniform(0.0, 0.8))
            kill(engine)
            for one in at_work:
                one.result()
        counted["kills"], counted["acknowledged"] = turn + 1, sum(one.answered for one in diaries)
        log.info("none lost so far: %s", dict(counted))
    assert found_at_work >= count // 2
    return counted


def kill(engine: RemoteEngine) -> None:
    os.kill(engine.entry.pid, signal.SIGKILL)


def test_killed_eight_times_it_loses_nothing_that_was_acknowledged(
    house: House, request: pytest.FixtureRequest
) -> None:
    request.node.user_properties += kills(house, 8, seed=1).items()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_a_thousand_times_it_loses_nothing_that_was_acknowledged(
    house: House, request: pytest.FixtureRequest
) -> None:
    """The counts of `kills` go into the run's report."""
    count, seed = int(os.environ.get("DJINN_KILLS", "1000")), int(os.environ.get("DJINN_KILLS_SEED", "2"))
    request.node.user_properties += kills(house, count, seed).items()


def test_engines_killed_and_started_at_once_share_no_session_and_forget_when_told(house: House) -> None:
    """Both engines are of one model and one user, as two JupyterLab servers have them."""
    for name, engine in zip(("one", "two"), house.engines(2), strict=True):
        engine.session(name).run(PROMPTS[0], max_new_tokens=4, ignore_eos=True)
        assert engine.stop() == ()
    found = []
    for engine in house.engines(2):
        found.append({one.name for one in engine.sessions()})
        os.kill(engine.entry.pid, signal.SIGKILL)
        await_end(engine.entry)
    assert set.union(*found) == {"one", "two"}
    assert not set.intersection(*found)
    first, second = house.engines(2)
    assert {one.name for engine in (first, second) for one in engine.sessions()} == {"one", "two"}
    lost = [name for engine in (first, second) for name in engine.stop(forget=True)]
    assert sorted(lost) == ["one", "two"]
    assert house.engine().sessions() == ()


@pytest.mark.parametrize(
    ("house", "site"),
    [("mamba2", "backbone.layers.6.mixer.output"), ("jamba", "model.layers.6.mamba.output")],
    indirect=["house"],
)
def test_a_killed_engine_leaves_what_was_on_disk_to_the_next(house: House, site: str, tmp_path: Path) -> None:
    """It leaves recurrent states, and rows beside them, of a session stopped within a layer and of one at rest."""
    engine, expected = house.engine(), {}
    for name in ("stayed", "idle", "stopped"):
        session = engine.session(name)
        assert isinstance(session.run(PROMPTS[0], max_new_tokens=8, ignore_eos=True), Finished)
        if name == "stopped":
            session.breakpoint(site, when="step in (1, 4)")
            session.run(PROMPTS[1], max_new_tokens=8, ignore_eos=True)
            assert isinstance(session.resume(), Paused)
        expected[name] = futures(session.fork(f"twin of {name}"))
        engine.session(f"twin of {name}").close()
        if name != "stayed":
            session.swap_out("disk")
    until(lambda: sum(bool(last_image(path).get("places")) for path in tmp_path.rglob("*.session")) == 2)
    os.kill(engine.entry.pid, signal.SIGKILL)
    await_end(engine.entry)
    engine = house.engine()
    found = {one.name: (one.exactness, one.residency) for one in engine.sessions()}
    on_disk = ("exact", "disk")
    assert found == {"stayed": ("recomputed", "resident"), "idle": on_disk, "stopped": on_disk}
    for name, said in expected.items():
        assert all(torch.equal(a, b) for a, b in zip(futures(engine.session(name)), said, strict=True)), name
        assert engine.session(name).describe().exactness == found[name][0]


def futures(session: RemoteSession) -> list[torch.Tensor]:
    """Return a session's values and outcomes: at its stop if it is paused, from an earlier stop, and extended."""
    seen: list[torch.Tensor] = []
    if session.describe().state == "paused":
        seen += [value_at(session), *outcome(session, session.resume(free=True))]
        session.back(2)
        seen += [value_at(session)]
    else:
        session.back(6, by="token")
    seen += outcome(session, session.resume(free=True))
    return seen + outcome(session, session.run([], extend=True, max_new_tokens=4, ignore_eos=True, free=True))


def value_at(session: RemoteSession) -> torch.Tensor:
    return torch.from_numpy(session.inspect().value.copy())


def outcome(session: RemoteSession, ended: Any) -> list[torch.Tensor]:
    assert isinstance(ended, Finished)
    return [torch.tensor(ended.tokens), torch.from_numpy(session.logits().copy())]


def test_an_engine_that_ends_in_order_recomputes_nothing_when_it_is_loaded_again(house: House) -> None:
    """Its user ends it, as before an upgrade, or the system's signal does."""
    engine = house.engine()
    engine.session("ended").run(PROMPTS[0], max_new_tokens=NEW, ignore_eos=True)
    logits = torch.from_numpy(engine.session("ended").logits().copy())
    assert engine.stop() == ()
    for _ in range(2):
        engine = house.engine()
        assert [(one.exactness, one.residency) for one in engine.sessions()] == [("exact", "disk")]
        session = engine.session("ended")
        assert torch.equal(torch.from_numpy(session.logits().copy()), logits)
        os.kill(engine.entry.pid, signal.SIGTERM)
        await_end(engine.entry)


def test_a_collection_whose_engine_is_killed_goes_on_after_its_last_whole_shard(house: House, tmp_path: Path) -> None:
    """The finished folder is the same to the bit."""
    prompts, site = [tokens(3 + n % 7, seed=n) for n in range(24)], "resid_post.3"
    engine = house.engine()
    engine.collect(prompts, site, to=tmp_path / "whole", shard_prompts=4)

    def ends(done: int) -> None:
        if done == 8:
            kill(engine)

    with pytest.raises(EngineUnavailable):
        engine.collect(prompts, site, to=tmp_path / "cut", shard_prompts=4, on_progress=ends)
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [f"shard-0000{n}.safetensors" for n in (0, 1)]
    told: list[int] = []
    again = house.engine().collect(prompts, site, to=tmp_path / "cut", shard_prompts=4, on_progress=told.append)
    assert (again.complete, told[-1]) == (True, 24)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "cut")]
    assert files[0] == files[1]


FOUND = samples.session("drawn", tokens=13)


class Engine:
    """An engine that has the one session as it was found."""

    def __init__(self, found: SessionDescription) -> None:
        self.found = found

    def sessions(self) -> tuple[SessionDescription, ...]:
        return (self.found,)

    def session(self, name: str) -> Engine:
        return self

    def describe(self) -> SessionDescription:
        return self.found

    def breakpoints(self) -> tuple[()]:
        return ()


def test_a_prompt_whose_run_was_not_answered_is_no_loss_and_may_not_be_lost_later() -> None:
    """The engine is killed in a run's first pass, then again before any other answer."""
    finished: Any = Finished.__new__(Finished)
    finished.prompt_tokens, finished.tokens = (1,) * 12, (2,) * 40
    diary, engine = Diary("drawn", last=finished, under_way=("move", "")), Engine(FOUND)
    diary.check(engine)
    diary.begin_anew(engine)
    diary.under_way = ("close", "drawn 182")
    diary.check(engine)
    with pytest.raises(AssertionError):
        diary.check(Engine(msgspec.structs.replace(FOUND, tokens=0)))
