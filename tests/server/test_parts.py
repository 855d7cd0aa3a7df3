"""The parts that need neither sockets nor a server."""

from __future__ import annotations

import asyncio
import json
import math
import typing
from pathlib import PurePosixPath
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter import errors
from djinn_jupyter.magics.loading import LoadingMagics
from djinn_jupyter.magics.parsing import read
from djinn_jupyter.methods.circuits.request import AttributeEdges, RunCircuits
from djinn_jupyter.methods.datasets.request import CheckCollect, Collect, Score
from djinn_jupyter.methods.features.request import EncodeFeatures, ReadFeature
from djinn_jupyter.methods.graphs.request import MakeGraph
from djinn_jupyter.methods.heads.request import ReadHead, ReadHeads
from djinn_jupyter.methods.sweep.request import CheckSweep, Sweep
from djinn_jupyter.methods.text.request import ReadText, ReadTextLens
from djinn_jupyter.methods.why.request import ExplainScore
from djinn_jupyter.server import live, messages
from djinn_jupyter.server.activities import Activities
from djinn_jupyter.server.endpoints import STATUSES, status_of
from djinn_jupyter.server.kernels import Kernels
from djinn_jupyter.server.link import load_words
from djinn_jupyter.server.live import LivePicture, Reader
from djinn_jupyter.server.messages import EngineFound, LiveEngine, LiveSession
from djinn_jupyter.settings import GivenOptions, Identity, chosen, part_of
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import SessionDescription, Snapshot, StopIdentity, TopToken
from djinn_jupyter.wire.pieces import PieceRequest
from djinn_jupyter.wire.replies import Inspected
from djinn_jupyter.wire.running import ReadMetrics
from tests.process.fake_engine import FakeEngine, FakeSession
from tests.server.jupyter import Window

STOP = StopIdentity(session="a", number=1, edition=1)


class Listener(Reader):
    """Keeps the posted messages."""

    def __init__(self, posted: list[bytes]) -> None:
        super().__init__(send=lambda message: asyncio.sleep(0), snapshot=lambda: b"")
        self.post = posted.append


def session(name: str = "paris", holder: str | None = None, tokens: int = 0, idle: float = 0.0) -> SessionDescription:
    described = FakeEngine()._describe(FakeSession(name=name, owner="ada", holder=holder))
    return msgspec.structs.replace(described, tokens=tokens, idle_seconds=idle)


# ---------------------------------------------------------------------------------------------------- pictures

names = st.sampled_from(["a", "b", "c"])
sessions = st.builds(
    lambda tokens, idle, label: LiveSession(
        described=session(tokens=tokens, idle=idle), label=label, notebook=None, kernel=None, idle_since=100.0 - idle
    ),
    st.integers(0, 2),
    st.floats(0.0, 3.0),
    st.sampled_from(["x", "y"]),
)
engines = st.builds(
    lambda state, held: LiveEngine(
        found=EngineFound(
            id="e", model="fake", load="fake", pid=1, host="here", version="1", started=0.0, state=state, reason=None,
            description=None,
        ),
        statistics=None,
        sessions=held,
    ),
    st.sampled_from(["connecting", "ready"]),
    st.dictionaries(names, sessions, max_size=3),
)  # fmt: skip


@given(st.lists(st.dictionaries(names, engines, max_size=3), max_size=6))
def test_a_snapshot_and_its_deltas_add_up_to_the_next_snapshot(pictures: list[dict[str, LiveEngine]]) -> None:
    picture, window, sent = LivePicture(clock=lambda: 0.0), Window(SimpleNamespace()), []
    picture.readers.add(Listener(sent))
    for shown in pictures:
        picture.show(shown, gone={}, sampled={})
        for message in sent:
            window._apply(json.loads(message))
        sent.clear()
        snapshot = json.loads(picture.snapshot())["engines"]
        assert window.engines == snapshot
        assert {name: set(e["sessions"]) for name, e in snapshot.items()} == {
            name: set(e.sessions) for name, e in shown.items()
        }


def test_a_session_that_only_grew_idle_makes_no_delta_and_one_that_was_used_does() -> None:
    sent: list[bytes] = []
    picture, at = LivePicture(clock=lambda: 0.0), 1000.0
    picture.readers.add(Listener(sent))
    for now, idle in ((0.0, 5.0), (1.0, 6.0), (2.0, 7.3), (60.0, 65.0)):
        picture.show({"e": _idle(at + now - idle, idle)}, gone={}, sampled={})
    assert len(sent) == 1
    picture.show({"e": _idle(at + 61.0, 0.0)}, gone={}, sampled={})
    (delta,) = [json.loads(message) for message in sent[1:]]
    assert delta["changed"]["e"]["sessions"]["a"]["idle_since"] == at + 61.0


def _idle(since: float, seconds: float) -> LiveEngine:
    held = LiveSession(described=session(idle=seconds), label="a", notebook=None, kernel=None, idle_since=since)
    found = EngineFound(
        id="e",
        model="m",
        load="m",
        pid=1,
        host="h",
        version="1",
        started=0.0,
        state="ready",
        reason=None,
        description=None,
    )
    return LiveEngine(found=found, statistics=None, sessions={"a": held})


# --------------------------------------------------------------------------------------------------- what loads it


@pytest.mark.parametrize(
    "identity",
    [
        Identity(model="demo"),
        Identity(model="gpt2", revision="main", dtype="float16", device="cpu", attention="eager"),
        Identity(model="gpt2", tensor_parallel=2),
        Identity(model="gpt2", quantize="int8"),
        Identity(model="ada's models/tiny", random_weights=True, random_seed=7),
    ],
)
def test_what_a_cell_is_told_to_load_means_the_engine(identity: Identity) -> None:
    args = read(LoadingMagics.djinn_load.parser, load_words(identity))
    assert identity == part_of(Identity, chosen(GivenOptions, args), model=args.model)


# ------------------------------------------------------------------------------------------------- activities


def kernels(**states: str) -> Kernels:
    paths = {name: f"{name}.ipynb" for name in states}
    return Kernels(states=states, paths=paths, root=PurePosixPath("/srv"))


def told(
    activities: Activities, known: Kernels, *held: SessionDescription, focused: frozenset[str] = frozenset()
) -> list[str]:
    return [note.activity for note in activities.notes(held, known, focused)]


def test_an_engine_is_told_what_changed_once() -> None:
    activities, held = Activities(), session(holder="kernel-k")
    assert told(activities, kernels(k="starting"), held) == ["idle"]
    assert told(activities, kernels(k="idle"), held) == []
    assert told(activities, kernels(k="busy"), held) == ["busy"]
    assert told(activities, kernels(k="busy"), held, focused=frozenset({"k.ipynb"})) == ["focused"]
    assert told(activities, kernels(k="dead"), held, focused=frozenset({"k.ipynb"})) == ["gone"]
    assert told(activities, kernels(), held) == ["blurred", "gone"]
    assert told(activities, kernels(), held) == []


def test_an_engine_that_began_a_session_anew_is_told_anew() -> None:
    activities, held = Activities(), session(holder="kernel-k")
    assert told(activities, kernels(k="busy"), held) == ["busy"]
    activities.forget("paris")
    assert told(activities, kernels(k="busy"), held) == ["busy"]


def test_a_kernel_of_another_server_is_none_of_ours() -> None:
    assert told(Activities(), kernels(k="busy"), session(holder="kernel-other"), session(holder=None)) == []


def test_a_session_that_another_kernel_took_over_is_told_anew() -> None:
    activities = Activities()
    assert told(activities, kernels(k="idle", m="idle"), session(holder="kernel-k")) == ["idle"]
    assert told(activities, kernels(k="idle", m="idle"), session(holder="kernel-m")) == ["idle"]


def test_after_a_restart_it_is_told_that_the_kernel_is_gone_and_then_back() -> None:
    activities, held = Activities(), session(holder="kernel-k")
    told(activities, kernels(k="idle"), held)
    assert [note.activity for note in activities.restarted("k")] == ["gone"]
    assert activities.restarted("m") == []
    assert told(activities, kernels(k="idle"), held) == ["idle"]


def test_a_notebook_is_found_by_its_kernel_or_by_the_name_of_the_session() -> None:
    known = kernels(k="idle")
    assert known.notebook_of(session("/srv/other.ipynb", holder="kernel-k")) == "k.ipynb"
    assert known.notebook_of(session("/srv/notes/paris.ipynb")) == "notes/paris.ipynb"
    assert known.notebook_of(session("/elsewhere/paris.ipynb")) is None
    assert known.notebook_of(session("paris")) is None


@pytest.mark.parametrize(
    ("changes", "last_holder", "closed"),
    [
        ({"name": "paris"}, None, True),
        ({"name": "paris"}, "kernel-dead", True),
        ({"name": "paris"}, "kernel-k", False),  # was silent for long, and lives
        ({"name": "paris", "holder": "process-1-2"}, None, False),
        ({"name": "paris", "state": "running"}, None, False),
        ({"name": "/srv/k.ipynb"}, None, False),  # its notebook works with another engine
        ({"name": "/srv/other.ipynb"}, None, True),
        ({"name": "/elsewhere/a.ipynb"}, None, True),
        ({"name": "paris", "notebook": "/srv/k.ipynb"}, None, False),  # as after the engine's restart
        ({"name": "paris", "notebook": "/srv/other.ipynb"}, None, True),
        ({"name": "paris", "notebook": "/elsewhere/a.ipynb"}, None, False),  # nobody knows
    ],
)
def test_a_session_is_one_of_a_closed_notebook(changes: dict[str, str], last_holder: str | None, closed: bool) -> None:
    known = Kernels(states={"k": "idle"}, paths={"k": "k.ipynb"}, root=PurePosixPath("/srv"))
    assert known.has_closed(msgspec.structs.replace(session(), **changes), last_holder) is closed


# ------------------------------------------------------------------------------------------------------- JSON


def test_numbers_that_json_has_no_word_for_are_null() -> None:
    row = json.loads(messages.write(TopToken(token=1, text="a", probability=math.nan, logit=-math.inf)))
    assert (row["probability"], row["logit"]) == (None, None)


def test_an_answer_with_too_many_bytes_is_refused() -> None:
    half = Array(dtype="uint8", shape=(2**24 + 1,), data=bytes(2**24 + 1))
    value = Snapshot(site="z.1", value=half, axes="T", positions=(), dtype="uint8", exactness="exact", stop=STOP)
    assert len(messages.write(Inspected(snapshot=value))) > 2**24
    with pytest.raises(errors.MessageTooLarge, match="ask for fewer positions"):
        messages.write([value, value])


def test_a_request_with_too_many_bytes_is_refused() -> None:
    with pytest.raises(errors.MessageTooLarge):
        messages.read_request(b" " * (messages.MAX_REQUEST_BYTES + 1))


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_comes_is_read_or_refused_in_one_sentence(body: bytes) -> None:
    with pytest.raises(errors.MalformedMessage, match=r"^Not a request of this protocol: [^\n]*\.$"):
        messages.read_request(body)


def test_every_request_is_either_answered_or_not_for_browsers() -> None:
    refused = set(kinds.known().requests) - set(messages.answers_among(kinds.known()).keys())
    assert refused == {
        ask.Hello,
        ask.Goodbye,
        ask.Listen,
        ask.Unlisten,
        ask.Detach,
        ask.Note,
        ask.ReadPeople,
        *typing.get_args(PieceRequest),
        ask.ReadProvenance,
        ask.SendAway,
        ask.TakeIn,
        ask.SettleMove,
        CheckCollect,
        CheckSweep,
        ask.AddModule,
        ask.AddAdapter,
        Sweep,
        AttributeEdges,
        MakeGraph,
        RunCircuits,
        Collect,
        Score,
        ReadHeads,
        ReadFeature,
        EncodeFeatures,
        ReadHead,
        ExplainScore,
        ReadText,
        ReadTextLens,
        ask.ReadWeight,
        ReadMetrics,
        ask.ReadFigures,
        ask.Compare,
        ask.ResumeWith,
        ask.SetAttention,
        ask.Share,
    }


def test_every_error_has_a_status() -> None:
    assert {status_of(kind("x")) for kind in errors.BY_CODE.values()} <= set(STATUSES.values())
    assert status_of(errors.SlabFull("x")) == 507
    assert status_of(errors.CheckpointRefused("x")) == 409
    assert status_of(errors.StorageFailed("x")) == 507
    assert status_of(errors.UnknownSite("x")) == 400
    assert status_of(errors.UnknownSession("x")) == 404


# ------------------------------------------------------------------------------------------------------ reader


def test_a_window_asks_for_the_notebook_that_it_shows() -> None:
    """The request names its kernel and its file, where the engine has to know whose a session is."""
    known = kernels(k="idle")
    asked = known.asked_by("k.ipynb", ask.Close(session="paris"))
    assert asked == ask.Close(session="paris", for_holder="kernel-k", for_notebook="/srv/k.ipynb")
    asked = known.asked_by("notes/rome.ipynb", ask.Open(session="paris", fresh=True))
    assert asked == ask.Open(session="paris", fresh=True, for_notebook="/srv/notes/rome.ipynb")
    assert known.asked_by("k.ipynb", ask.Pause(session="paris")) == ask.Pause(session="paris")


async def test_a_reader_that_is_behind_drops_what_waits_and_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WAITING_MESSAGES", 3)
    sent: list[bytes] = []
    takes = asyncio.Event()

    async def send(message: bytes) -> None:
        await takes.wait()
        sent.append(message)

    slow = Reader(send=send, snapshot=lambda: b"snapshot")
    running = asyncio.ensure_future(slow.run())
    await asyncio.sleep(0)
    for number in range(4):
        slow.post(b"%d" % number)
    assert slow.statistics().resyncs == 1
    slow.post(b"contained in the snapshot")
    takes.set()
    while len(sent) < 2:
        await asyncio.sleep(0)
    slow.post(b"after")
    while len(sent) < 3:
        await asyncio.sleep(0)
    assert sent == [b"snapshot", b"snapshot", b"after"]
    running.cancel()


async def test_what_waits_for_a_reader_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WAITING_BYTES", 100)
    slow = Reader(send=lambda message: asyncio.sleep(0), snapshot=lambda: b"")
    slow._next()
    slow.post(b"x" * 60)
    assert slow.statistics().waiting_bytes == 60
    slow.post(b"x" * 60)
    assert slow.statistics() == live.ReaderStatistics(waiting=0, waiting_bytes=0, sent=0, resyncs=1)
