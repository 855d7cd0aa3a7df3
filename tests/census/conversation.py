"""A conversation with an engine of the demo model in which every kind of request is asked, in an order that gives each
what it needs. It was recorded before the first step; afterwards its bytes are sent again.

    python -m tests.census.conversation      record conversation.msgpack.xz anew, from an engine of this tree
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import zmq

import djinn_jupyter as dj
from djinn_evaluation.serving import private_jupyter
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.methods.circuits.request import AttributeEdges, RunCircuits
from djinn_jupyter.methods.datasets.request import CheckCollect, Collect, Score
from djinn_jupyter.methods.direct.request import Attribute
from djinn_jupyter.methods.graphs.request import MakeGraph
from djinn_jupyter.methods.heads.request import ReadHeads
from djinn_jupyter.methods.sweep.request import CheckSweep, Estimate, Sweep
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Add, Scale, Zero
from djinn_jupyter.wire.looks import Direction
from djinn_jupyter.wire.modules import AdaptedModule, ModuleForm, NamedTensor
from djinn_jupyter.wire.pieces import Assemble, PutPiece
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.running import ReadMetrics
from tests.census.recorded import CONVERSATION, Recorded, of_no_machine, write
from tests.process.peers import Peer

LAYERS: Final = 8
WIDTH: Final = 128
FEATURES: Final = 3
LINE: Final = tuple(range(20, 28))
OTHER: Final = (*LINE[:-3], 40, *LINE[-2:])
METRIC: Final = "logit(17) - logit(42)"
MOVE: Final = "0123456789abcdef" * 2
LONG: Final = 900
TOGETHER: Final = "sent with the next one"


def numbers(*shape: int, seed: int = 1) -> Array:
    """Return float32 numbers that are the same everywhere."""
    count = 1
    for size in shape:
        count *= size
    values = [((number * 7919 + seed * 104729) % 2003 - 1001) / 4004 for number in range(count)]
    return Array(dtype="float32", shape=shape, data=struct.pack(f"<{count}f", *values))


def transcoder(layer: int) -> ask.AddModule:
    tensors = {
        "W_enc": numbers(WIDTH, FEATURES, seed=layer),
        "b_enc": numbers(FEATURES, seed=layer + 20),
        "W_dec": numbers(FEATURES, WIDTH, seed=layer + 40),
        "b_dec": numbers(WIDTH, seed=layer + 60),
    }
    return ask.AddModule(
        session="module",
        name="tc",
        at=f"mlp_in.{layer}",
        form=ModuleForm(kind="transcoder", dtype="float32"),
        tensors=tuple(NamedTensor(name=name, values=values) for name, values in tensors.items()),
        folder="/modules/tc",
        digest=f"digest-{layer}",
    )


def adapter() -> ask.AddAdapter:
    path = "model.layers.2.self_attn.q_proj"
    module = AdaptedModule(path=path, factor=0.5, down=numbers(1, WIDTH), up=numbers(WIDTH, 1))
    return ask.AddAdapter(session="module", name="sql", modules=(module,), folder="/adapters/sql", digest="digest")


def collect(**others: Any) -> dict[str, Any]:
    return {
        "session": "work",
        "shard": 0,
        "first": 0,
        "last": True,
        "prompts": (LINE,),
        "sites": ("resid_post.4",),
    } | others


def sweep(**others: Any) -> dict[str, Any]:
    usual = {"session": "work", "corrupted": LINE, "clean": OTHER, "site": "resid_post", "over": ("layer",)}
    return {**usual, "metrics": (METRIC,), **others}


Made = Callable[[Provenance], Any]  # a request that says which engine it is asked of


def conversation() -> Iterator[ask.Request | tuple[ask.Request, ...] | Made]:
    """Yield the requests in order; those of a tuple are sent together."""
    yield from (ask.Ping(), ask.Listen(), ask.Unlisten(), ask.ReadStatistics(), ask.ListModules(), ask.ReadProvenance())
    yield from (ask.Tokenize(text="the cat saw the dog"), ask.Tokenize(text="the cat", chat=True))
    yield from (ask.Detokenize(tokens=LINE), ask.ReadWeight(name="W_U", rows=(0, 1)), ask.ReadPeople())
    yield from (ask.Open(session="a"), ask.Open(session="a", fresh=True), ask.Open(session="work"), ask.ListSessions())
    yield from (
        ask.SetAttention(session="a", attention="sdpa"),
        ask.Describe(session="a"),
        ask.Describe(session="no one"),
    )
    # a stop, and what is read there
    yield from (
        ask.SetBreakpoint(session="a", site="resid_post.4"),
        ask.SetBreakpoint(session="a", site="mlp_out.2", when="norm > 1e9", once=True),
        ask.EnableBreakpoint(session="a", number=2, enabled=False),
        ask.Run(session="a", tokens=LINE, max_new_tokens=4, ignore_eos=True),
        ask.ReadStop(session="a"),
        ask.Inspect(session="a", positions=(-1,)),
        ask.Inspect(session="a", site="pattern.2", positions=(-1,)),
        ask.Inspect(session="a", site="resid_post.6", positions=(-1,), ahead=True),
        ask.ReadPooled(session="a", rows=8, columns=8, strongest=2),
        ask.ReadPooled(session="a", site="pattern.2", rows=8, columns=8, mean_of_heads=True, rounded=True),
        ask.ReadFigures(session="a", each=True),
        ask.ReadPass(session="a", sites=("resid_post.1", "mlp_out.3"), positions=(-1,)),
        ask.Lens(session="a", positions=(-1,), top=3, tokens=(17,)),
        Attribute(session="a", tokens=(17, 42), heads=True),
        ask.Evaluate(session="a", expression="norm > 0"),
        ask.Evaluate(session="a", expression="no such word"),
    )
    # edits, rules, watches, steps
    yield from (
        ask.ApplyEdit(session="a", edit=Scale(factor=0.5), words="scale 0.5"),
        ask.ApplyEdit(session="a", edit=Add(vector=numbers(WIDTH), coef=2.0), positions=(-1,)),
        ask.EnableEdit(session="a", number=1, enabled=False),
        ask.MeasureEffect(session="a", top=3),
        ask.RevertEdits(session="a"),
        ask.Watch(session="a", site="resid_post.5"),
        ask.Watch(session="a", site="resid_post.6", direction=Direction(name="d", vector=numbers(WIDTH))),
        ask.Steer(session="a", site="resid_post.5", edit=Scale(factor=1.5), on="new", words="scale 1.5"),
        ask.EnableRule(session="a", number=1, enabled=False),
        ask.Step(session="a"),
        ask.Step(session="a", by="point"),
        ask.Back(session="a"),
        ask.ResumeWith(session="a", value=numbers(1, WIDTH), positions=(-1,), halts=("resid_post.6",)),
        ask.Resume(session="a"),
        ask.ReadHistory(session="a"),
        ask.ClearBreakpoints(session="a"),
        ask.Resume(session="a", free=True),
        ask.Resume(session="a"),
        ask.ReadLogits(session="a"),
        ReadMetrics(session="a", metrics=(METRIC,)),
        ask.ReadWatch(session="a", site="resid_post.5"),
        ask.ReadWatch(session="a", site="resid_post.6", direction="d"),
        ask.Unwatch(session="a"),
        ask.Unsteer(session="a"),
        ask.Fork(session="a", name="b"),
        ask.SetBreakpoint(session="a", site="resid_post.4"),
        ask.SetBreakpoint(session="b", site="resid_post.4"),
        ask.Run(session="a", tokens=LINE, max_new_tokens=1),
        ask.Run(session="b", tokens=OTHER, max_new_tokens=1),
        ask.Compare(session="a", other="b", last=2),
        ask.ReadTree(),
        ask.AcceptRecomputed(session="a"),
        ask.Note(session="a", activity="focused"),
        ask.Rest(session="a", expected_seconds=60.0),
        ask.SwapOut(session="a"),
        ask.SwapIn(session="a"),
        ask.SaveCheckpoint(session="a", name="kept"),
        ask.ListCheckpoints(),
        ask.RestoreCheckpoint(session="c", name="kept"),
        ask.DropCheckpoint(name="kept"),
        ask.Share(session="a", person="ada", access="read"),
        (ask.Run(session="b", tokens=LINE, max_new_tokens=LONG, ignore_eos=True, free=True), ask.Pause(session="b")),
    )
    # methods
    yield from (
        CheckSweep(**sweep()),
        Sweep(**sweep()),
        Sweep(**sweep(clean=None, edit=Zero(), over=("layer", "position"), positions=(-1,), mode="exact")),
        Sweep(**sweep(estimate=Estimate())),
        Sweep(**sweep(site="resid_pre", receivers=("logits",), positions=(-1,))),
        Sweep(**sweep(metrics=("no such metric",))),
        AttributeEdges(session="work", corrupted=LINE, clean=OTHER, metric=METRIC),
        RunCircuits(session="work", corrupted=LINE, clean=OTHER, metric=METRIC, circuits=(((0, 0), (0, 1)), ())),
        CheckCollect(**collect()),
        Collect(**collect()),
        Collect(**collect(sites=("no such site",))),
        Score(session="work", prompts=(LINE, OTHER)),
        Score(session="work", prompts=(LINE[:2],), what="logits"),
        ReadHeads(session="work", lines=(LINE, OTHER)),
        ReadHeads(session="work", lines=(LINE[:3],), patterns=True),
    )
    # modules and adapters
    yield from (ask.Open(session="module", temporary=True), *map(transcoder, range(LAYERS)), ask.ListAddedModules())
    yield MakeGraph(session="work", line=LINE, module="tc", logits=2, features=8)
    yield from (ask.RemoveModule(name="tc"), adapter(), ask.ListAdapters(), ask.Open(session="adapted"))
    yield from (ask.SetAdapter(session="adapted", adapter="sql"), ask.SetAdapter(session="adapted", adapter=None))
    yield from (ask.RemoveAdapter(name="sql"), ask.Close(session="module"))
    # the weights, a move, pieces, the end
    yield from (ask.Sleep(), ask.Wake(), ask.ReadCopies())
    yield lambda here: ask.SendAway(session="c", to=here, move=MOVE)
    yield from (ask.TakeIn(session="d", move=MOVE), ask.SettleMove(session="c", move=MOVE))
    yield from (ask.ReadPiece(of=1, start=0, count=1), ask.DropPieces(of=1), Assemble())
    yield PutPiece(of=2**41, start=0, count=4, content=Array(dtype="uint8", shape=(4,), data=b"abcd"), sizes=(4,))
    yield from (ask.Detach(session="b"), ask.Close(session="b"), (ask.Shutdown(force=True), ask.Goodbye()))


class Talker(Peer):
    """A client of which the frames of all replies are kept, by the number of the request."""

    def __init__(self, engine: RemoteEngine, context: zmq.Context[Any]) -> None:
        assert engine.entry is not None
        self.frames: dict[int, list[bytes]] = {}
        super().__init__(engine.entry, context, "census", "census")

    def receive(self, milliseconds: int = 60_000) -> bool:
        """Read the next reply, keep its frames, and read events before it."""
        while self._socket.poll(milliseconds):
            frames = self._socket.recv_multipart()
            if not codec.is_event(frames):
                told = codec.decode_reply(frames)
                self.replies[told.id].append(told.body)
                self.frames[told.id] = frames
                return True
        return False

    def answers(self, requests: list[list[bytes]]) -> list[list[bytes]]:
        """Send requests together, as frames, and return the frames of their replies."""
        for frames in requests:
            self.send_frames(frames)
        asked = [number for frames in requests if (number := codec.read_number(frames)) is not None]
        for number in asked:
            self.reply_to(number)
        return [self.frames[number] for number in asked]


def recorded(talker: Talker) -> Iterator[list[Recorded]]:
    """Yield what is asked together, with the replies."""
    here = talker.ask(ask.ReadProvenance()).provenance
    for step in conversation():
        together = step if isinstance(step, tuple) else (step(here) if callable(step) else step,)
        by = TOGETHER if len(together) > 1 else ""
        frames = [[bytes(frame) for frame in codec.encode(talker.next_number(), request)] for request in together]
        replies = talker.answers(frames)
        yield [
            Recorded(by=by, request=of_no_machine(one), reply=of_no_machine(reply))
            for one, reply in zip(frames, replies, strict=True)
        ]


@contextmanager
def talking() -> Iterator[Talker]:
    """Start an engine of the demo model that no one else finds, and talk to it."""
    with private_jupyter():
        context: zmq.Context[Any] = zmq.Context()
        engine = dj.load("demo", threads=1)
        talker = Talker(engine, context)
        try:
            yield talker
        finally:
            talker.close()
            context.term()
            with suppress(EngineUnavailable):  # its end was asked for
                engine.stop(force=True)


def main() -> None:
    with talking() as talker:
        found = [one for together in recorded(talker) for one in together]
    write(CONVERSATION, found)
    for one in found:
        said = msgspec.msgpack.decode(one.reply[0])["body"].get("message", "")
        sys.stdout.write(f"{one.kind} -> {one.answered_by} {said}\n")


if __name__ == "__main__":
    main()
