"""A live engine's sockets and its log. The cases of `tests.engine.requests.test_any_request` and its interleavings get
one reply each, and a bystander's bits are what they always are; each request on the wire's own list begins and ends in
the log once, with its ids and its outcome, and nothing of the work is there."""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import djinn_jupyter as dj
from djinn_evaluation.machine import computed_on
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.system.log import LoggedRequest, WorkingOn
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.registry import log_of
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.logs import Trace, asked_by, with_older
from djinn_jupyter.wire.pieces import Assemble
from djinn_jupyter.wire.replies import Failed
from tests.engine.cases import KINDS, QUALITIES, STEPS, Case, State, Step, cases, some_cases
from tests.engine.crowd import is_refusal
from tests.engine.desk import Desk, desk_of
from tests.engines import own_registry
from tests.process.live_crowd import LiveCrowd
from tests.waiting import until
from tests.wire.values import Quality

pytestmark = pytest.mark.processes
MANY = settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a live engine is never twice the same: nothing to shrink
)
FEW = settings(MANY, max_examples=25)
PARTS = range(4)  # of the kinds: each test reads the log, which becomes long


@pytest.fixture(scope="module")
def engine(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    with own_registry(tmp_path_factory.mktemp("own")):
        yield dj.load(llama, dtype="float32", device=computed_on(), threads=1, log_format="json", log_level="debug")


@pytest.fixture(scope="module")
def crowd(engine: RemoteEngine) -> Iterator[LiveCrowd]:
    crowd = LiveCrowd(engine)
    yield crowd
    crowd.close()


@pytest.fixture(scope="module")
def desk() -> Desk:
    return desk_of("llama")


def path_of(engine: RemoteEngine) -> Path:
    return log_of(engine.entry)


def written(engine: RemoteEngine, mark: str = "") -> str:
    """Return the log behind a mark, also where it was begun anew since."""
    behind = ""
    for one in reversed(with_older(path_of(engine))):
        before, found, after = one.read_text().rpartition(mark) if mark else ("", "", one.read_text())
        if found:
            return after + behind
        behind = before + after + behind
    assert not mark, "the mark is not in the log any more"
    return behind


def whole_lines(engine: RemoteEngine, mark: str) -> list[str]:
    """Return the lines behind a mark, without one that is only just being written."""
    return [line for line in written(engine, mark).splitlines(keepends=True) if line.endswith("\n")]


def mark_of(engine: RemoteEngine) -> str:
    """Return the last line of a request of its own, behind those of all before it."""
    name = f"%mark {secrets.token_hex(8)}"
    with asked_by(name):
        engine.statistics()

    def ended() -> list[str]:
        there = "".join(one.read_text() for one in with_older(path_of(engine))).splitlines(keepends=True)
        return [line for line in there if name in line and '"event": "request.ended"' in line]

    return until(ended, "the mark is written")[0]


def lines(engine: RemoteEngine, mark: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(engine, mark) if line.startswith("{")]


def until_closed(engine: RemoteEngine, mark: str) -> list[dict[str, Any]]:
    """Return the lines up to the end of the closing of a session."""
    until(lambda: [one for one in lines(engine, mark) if one.get("verb") == "Close"][1:], "the session is closed")
    return lines(engine, mark)


@dataclass(frozen=True, slots=True)
class Traced(Case):
    trace: Trace

    def frames(self, number: int) -> list[bytes]:
        return [bytes(frame) for frame in codec.encode(number, self.request, self.trace)]


def _each_is_answered(engine: RemoteEngine, crowd: LiveCrowd, *kinds: Iterator[tuple[State, Case]]) -> None:
    """Ask for each, and find its beginning and its end in the log with its ids and its outcome."""
    mark, replies = mark_of(engine), dict[str, Any]()
    for those in kinds:
        for state, case in those:
            if case.ends_the_engine:
                continue
            crowd.bring(case.name, state)
            trace, read = Trace.drawn("%case"), _is_read(case)
            reply = crowd.ask(Traced(case.kind, case.fields, case.name, trace) if read else case, state)
            assert not isinstance(reply, Failed) or is_refusal(reply), (state, case, reply)
            crowd.goes_on()
            if read:
                replies[trace.span_id] = case.kind, reply
        crowd.close_others()
    crowd.alone()
    found = until(lambda: _pairs(engine, mark, set(replies)), "the last line is written")
    for span, (kind, reply) in replies.items():
        outcome = reply.code if isinstance(reply, Failed) else type(reply).__name__
        began, ended = found[span]
        assert (began["verb"], ended["outcome"]) == (kind.__name__, outcome)
        assert began["trace_id"] == ended["trace_id"]
        assert (began["event"], ended["event"]) == ("request.began", "request.ended")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("quality", QUALITIES)
def test_any_request_over_a_socket_gets_one_reply_and_leaves_the_others_alone(
    engine: RemoteEngine, crowd: LiveCrowd, part: int, quality: Quality
) -> None:
    kinds = (some_cases(kind, quality, "a", of_each_state=1) for kind in KINDS[part :: len(PARTS)])
    _each_is_answered(engine, crowd, *kinds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("quality", QUALITIES)
def test_every_value_over_a_socket_gets_one_reply_and_leaves_the_others_alone(
    engine: RemoteEngine, crowd: LiveCrowd, kind: type, quality: Quality
) -> None:
    _each_is_answered(engine, crowd, cases(kind, quality, "a"))


@FEW
@given(steps=STEPS)
def test_eight_connections_ask_anything_and_a_bystander_goes_on_bit_for_bit(
    crowd: LiveCrowd, steps: list[Step]
) -> None:
    crowd.interleave(steps)
    crowd.goes_on()
    crowd.alone()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(steps=STEPS)
def test_eight_connections_ask_anything_for_long(crowd: LiveCrowd, steps: list[Step]) -> None:
    crowd.interleave(steps)
    crowd.goes_on()
    crowd.alone()


def _is_read(case: Case) -> bool:
    """Whether the engine takes it for a request at all; else it is refused as no message of the protocol. `Assemble`
    says that the pieces of a request are there, which is a request by its own ids."""
    if case.request is None or case.kind is Assemble:
        return False
    try:
        codec.decode_request(codec.encode(1, case.request))
    except DjinnError:
        return False
    return True


def _pairs(engine: RemoteEngine, mark: str, spans: set[str]) -> dict[str, list[dict[str, Any]]] | bool:
    """Return the lines of the requests' beginnings and ends; False until all have ended."""
    found = defaultdict[str, list[dict[str, Any]]](list)
    for line in lines(engine, mark):
        if line["event"].startswith("request."):
            found[line["span_id"]].append(line)
    return found if all(len(found[span]) >= 2 for span in spans) else False


def test_a_magic_is_followed_to_the_layer_where_it_stopped(engine: RemoteEngine) -> None:
    mark = mark_of(engine)
    session = engine.session("followed", fresh=True)
    session.breakpoint("resid_post.2")
    with asked_by("%djinn_run"):
        session.run([5, 6, 7], max_new_tokens=2)
        session.inspect()
    with asked_by("%djinn_edit"):
        session.edit(dj.scale(0.5))
    session.close()
    told = until(lambda: [one for one in lines(engine, mark) if one.get("verb") == "Close"][1:] and lines(engine, mark))
    run = [one for one in told if one.get("asked_by") == "%djinn_run"]
    assert {one["trace_id"] for one in run} == {run[0]["trace_id"]}
    of_run = [one for one in run if one["verb"] == "Run"]
    assert len({one["span_id"] for one in of_run}) == 1
    events = [one["event"] for one in of_run]
    assert events[0] == "request.began"
    assert {"turn", "pass.layer", "pass.stopped"} <= set(events)
    (stopped,) = [one for one in of_run if one["event"] == "pass.stopped"]
    assert (stopped["site"], stopped["layer"], stopped["step"]) == ("resid_post.2", 3, 0)
    assert [one["layer"] for one in of_run if one["event"] == "pass.layer"] == [0, 1, 2]
    (edited,) = [one for one in told if one.get("asked_by") == "%djinn_edit" and one["event"] == "request.ended"]
    assert (edited["outcome"], edited["site"]) == ("Edited", "resid_post.2")


SECRETS = ("rumpelstiltskin", "swordfish")
TOLD = {
    "time", "level", "engine", "pid", "event", "trace_id", "span_id", "asked_by", "verb", "person", "session",
    "logger", "message", "outcome", "seconds", "site", "layer", "step", "layers_run", "rules", "again",
}  # fmt: skip


def test_nothing_of_the_work_is_in_the_log(engine: RemoteEngine, crowd: LiveCrowd) -> None:
    """Prompts, tokens, conditions, values and what is refused for them, at the level debug. Who asks without ids gets
    some."""
    mark = mark_of(engine)
    crowd.stage.ask(ask.ReadTree())
    session = engine.session("private", fresh=True)
    token, vector = 113, np.full(engine.description.hidden_size, 765.4321, np.float32)  # no time has three digits there
    session.breakpoint("resid_post.2", when="norm > -4711.5")
    session.steer(1, dj.add(vector))
    session.run([token, token, token], max_new_tokens=2)
    value = session.inspect().value
    for refused in (
        lambda: session.run(f"{SECRETS[0]} of paris", max_new_tokens=1),
        lambda: session.breakpoint("resid_post.2", when=f"top1 == '{SECRETS[1]}' +"),
        lambda: session.breakpoint(SECRETS[0]),
        lambda: session.edit(dj.add(vector[:3])),
        lambda: session.lens(tokens=[SECRETS[1]]),
    ):
        with pytest.raises(DjinnError):
            refused()
    session.close()
    told = until_closed(engine, mark)
    assert {len(one["trace_id"]) for one in told if one.get("verb") == "ReadTree"} == {32}
    numbers = [repr(float(number)) for number in value.ravel()[:64]]
    for secret in (*SECRETS, "4711.5", "765.4", f"[{token}", f"{token}, {token}", *numbers):
        assert secret not in written(engine, mark), secret
    assert {name for one in told for name in one} <= TOLD
    assert path_of(engine).stat().st_mode & 0o077 == 0
    assert "it/s" not in written(engine)  # no bar of a library, which would stand at the head of the next line
    assert not [line for line in written(engine).splitlines() if "{" in line and not line.startswith("{")]


def test_a_pass_that_fails_tells_in_which_layer(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """An error of a layer that the engine does not know, of a request that came over the wire."""
    session = desk.open("a")

    def fails(*arguments: object) -> None:
        raise RuntimeError("a secret of the layer")

    asked = LoggedRequest(trace=Trace.drawn(), verb="Run", person="anna")
    handle = desk.engine.anatomy.layers[3].mlp.register_forward_hook(fails)
    try:
        with WorkingOn(asked), caplog.at_level("INFO"), pytest.raises(DjinnError):
            desk.engine.ask(ask.Run(session=session, tokens=(5, 6, 7), max_new_tokens=2))
    finally:
        handle.remove()
        desk.close_all()
    (failed,) = [record for record in caplog.records if vars(record).get("event") == "pass.failed"]
    assert vars(failed)["fields"] == {"layer": 3, "step": 0, "error_type": "RuntimeError"}
    assert "secret" not in failed.getMessage()
