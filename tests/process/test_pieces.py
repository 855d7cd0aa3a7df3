"""A large reply over a line: it comes in pieces, bit for bit; it goes on where it was when the line is lost; an
interrupt leaves connection and session as they are."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import Any

import numpy as np
import pytest

from djinn_jupyter.errors import DjinnError, EngineError
from djinn_jupyter.link import io_thread
from djinn_jupyter.link.channel import SocketChannel, ask_for
from djinn_jupyter.link.io_thread import IoThread
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.large_messages import GIVEN_UP, LEAST_BYTES, Arrival, LineRate, PackedRate, SoFar
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.pieces import MOST_BYTES, WHOLE_BYTES, InPieces, PieceRead
from tests.process.afar import afar, entry_of, opened, taken_by, until
from tests.process.rough_line import RoughLine
from tests.process.served import Served, served

pytestmark = pytest.mark.usefixtures("keys")
NUMBERS = 2**19  # of 4 bytes


def activations(count: int = NUMBERS) -> Array:
    """Return numbers like those of a residual stream: of a few magnitudes, with fractions that none can guess."""
    values = np.random.default_rng(15).standard_normal(count, dtype=np.float32)
    return Array(dtype="float32", shape=(count,), data=values.tobytes())


def holds(house: Served, values: Array) -> None:
    """Have the engine answer ReadLogits with these values."""
    handle = house.engine._handle

    def answered(queued: Any) -> Any:
        reply = handle(queued)
        return told.Logits(stop=reply.stop, logits=values) if isinstance(reply, told.Logits) else reply

    house.engine._handle = answered  # type: ignore[method-assign]


async def test_a_large_reply_comes_in_pieces_bit_for_bit_and_a_small_one_whole() -> None:
    values = activations()
    async with afar() as (house, _, connection):
        holds(house, values)
        taken = _pieces_of(house)
        await connection.ask(ask.Open(session="paris"))
        assert taken == []
        read = await connection.ask(ask.ReadLogits(session="paris"))
        assert isinstance(read, told.Logits)
        assert read.logits == values
        asked = [one for one in taken if isinstance(one, ask.ReadPiece)]
        assert len(asked) > 1
        assert max(one.count for one in asked) <= MOST_BYTES
        await until(lambda: len(house.service._replies_in_pieces) == 0)
        assert connection.wire_bytes.arrays_received < values.nbytes  # what is packed is fewer


async def test_over_a_private_folder_it_comes_whole() -> None:
    values = activations()
    with served() as house:
        holds(house, values)
        taken = _pieces_of(house)
        connection = await opened(house.entry)
        await connection.ask(ask.Open(session="paris"))
        read = await connection.ask(ask.ReadLogits(session="paris"))
        assert isinstance(read, told.Logits)
        assert read.logits == values
        assert taken == []
        await connection.close()


async def test_a_line_that_is_lost_in_the_midst_of_an_array_goes_on_where_it_was() -> None:
    values = activations(4 * NUMBERS)
    async with afar() as (house, relay, connection):
        holds(house, values)
        await connection.ask(ask.Open(session="paris"))
        pieces = _pieces_of(house)
        taken = taken_by(house)
        reading = asyncio.ensure_future(connection.ask(ask.ReadLogits(session="paris")))
        await until(lambda: _progress(connection).done > 2 * WHOLE_BYTES)
        relay.cut()
        await until(lambda: connection.down_since is not None)
        before = _progress(connection).done
        assert 0 < before < values.nbytes
        await relay.mend()
        read = await reading
        assert isinstance(read, told.Logits)
        assert read.logits == values
        assert [type(one) for one in taken] == [ask.ReadLogits]  # it was computed once
        read_twice = sum(one.count for one in pieces if isinstance(one, ask.ReadPiece)) - values.nbytes
        assert read_twice < 8 * MOST_BYTES  # those that were on the way


async def test_a_reply_that_is_given_up_leaves_the_line_and_the_session_usable_at_once() -> None:
    values = activations(4 * NUMBERS)
    async with afar() as (house, _, connection):
        holds(house, values)
        await connection.ask(ask.Open(session="paris"))
        number = connection._number + 1
        reading = asyncio.ensure_future(connection.ask(ask.ReadLogits(session="paris")))
        await until(lambda: connection.arrivals.progress is not None)
        connection.give_up(number)
        with pytest.raises(EngineError, match="given up on its way"):
            await reading
        assert isinstance(await connection.ask(ask.Describe(session="paris")), told.Described)
        await until(lambda: len(house.service._replies_in_pieces) == 0)
        read = await connection.ask(ask.ReadLogits(session="paris"))
        assert isinstance(read, told.Logits)
        assert read.logits == values


async def test_a_reply_that_is_given_up_before_it_comes_is_not_read() -> None:
    async with afar() as (house, _, connection):
        holds(house, activations())
        await connection.ask(ask.Open(session="paris"))
        pieces = _pieces_of(house)
        reading = asyncio.ensure_future(connection.ask(ask.ReadLogits(session="paris")))
        await asyncio.sleep(0)
        connection.give_up(connection._number)
        with pytest.raises(EngineError, match=GIVEN_UP):
            await reading
        await until(lambda: [type(one) for one in pieces] == [ask.DropPieces])
        await until(lambda: len(house.service._replies_in_pieces) == 0)


async def test_an_interrupt_ends_the_waiting_and_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a line of 2 MB/s, in the thread of a cell. What is asked for next has not to wait for the rest."""
    values, shown = activations(4 * NUMBERS), list[tuple[SoFar, bool]]()
    monkeypatch.setattr(io_thread, "SHOWN_SECONDS", 0.0)
    monkeypatch.setattr(io_thread, "LOOK_SECONDS", 0.05)

    def interrupt(progress: SoFar, *, over: bool) -> None:
        shown.append((progress, over))
        if progress.done and not over:
            raise KeyboardInterrupt

    thread = IoThread()
    with served(tcp=True) as house:
        holds(house, values)
        pieces = _pieces_of(house)
        line = RoughLine(engine=_address(house), delay_seconds=0.01, lost_share=0.0, bytes_per_second=2e6)
        async with line.standing():
            entry = entry_at(read_address(f"127.0.0.1:{line.port}"), "ada")
            opening = functools.partial(SocketChannel, thread, entry, holder="kernel-1", user="ada", notebook=None)
            channel = await asyncio.to_thread(opening)
            channel.show_receiving(interrupt)

            def cell() -> told.Reply:
                ask_for(channel, ask.Open(session="paris"))
                with pytest.raises(KeyboardInterrupt):
                    ask_for(channel, ask.ReadLogits(session="paris"))
                return ask_for(channel, ask.Describe(session="paris"))

            described = await asyncio.to_thread(cell)
            assert isinstance(described, told.Described)
            assert pieces[-1] == ask.DropPieces(of=pieces[0].of)  # type: ignore[union-attr]
            asked = sum(one.count for one in pieces if isinstance(one, ask.ReadPiece))
            assert asked < values.nbytes / 4
            assert shown[0][0].total > values.nbytes
            await asyncio.to_thread(channel.close)
    thread.stop()


async def test_no_other_client_reads_a_piece_of_it() -> None:
    """Another connection of the same key names the same number, before and while it is there."""
    async with afar() as (house, _, connection):
        holds(house, activations(4 * NUMBERS))
        await connection.ask(ask.Open(session="paris"))
        other = await opened(entry_of(house), "kernel-2")
        number = connection._number + 1
        reading = asyncio.ensure_future(connection.ask(ask.ReadLogits(session="paris")))
        await until(lambda: len(house.service._replies_in_pieces) == 1)
        with pytest.raises(EngineError, match="not there any more"):
            await other.ask(ask.ReadPiece(of=number, start=0, count=1))
        await other.ask(ask.DropPieces(of=number))
        assert isinstance(await reading, told.Logits)
        await other.close()


async def test_what_is_on_its_way_goes_with_its_client() -> None:
    async with afar() as (house, _, connection):
        holds(house, activations(4 * NUMBERS))
        await connection.ask(ask.Open(session="paris"))
        reading = asyncio.ensure_future(connection.ask(ask.ReadLogits(session="paris")))
        await until(lambda: connection.arrivals.progress is not None)
        await connection.close()
        with pytest.raises(DjinnError):
            await reading
        await until(lambda: len(house.service._replies_in_pieces) == 0)


def _address(house: Served) -> tuple[str, int]:
    address = read_address(entry_of(house).commands)
    return address.host, address.port


def _progress(connection: Any) -> SoFar:
    """Return how far the reply is; of one that has not begun, or has arrived, nothing."""
    progress = connection.arrivals.progress
    return progress or SoFar(way="received", done=0, total=1, carried=0, seconds=1.0)


def _pieces_of(house: Served) -> list[ask.Request]:
    """Return the list of all requests for pieces that the service takes from here on."""
    taken: list[ask.Request] = []
    in_pieces = house.service._replies_in_pieces
    answer = in_pieces.answer

    def note(client: bytes, request: Any, answered: Any) -> None:
        taken.append(request)
        answer(client, request, answered)

    in_pieces.answer = note  # type: ignore[method-assign]
    return taken


# --------------------------------------------------------------------------------------------------- the line's rate


class Line:
    """A line without sockets: it carries so many bytes a second, each piece `delay` seconds after it was asked for."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.waiting: list[tuple[ask.ReadPiece, Any]] = []

    def post(self, request: ask.ReadPiece, answered: Any) -> int:
        self.waiting.append((request, answered))
        return 0

    def answer(self, place: int) -> None:
        request, answered = self.waiting.pop(place)
        piece = self.content[request.start : request.start + request.count]
        answered(PieceRead(content=Array(dtype="uint8", shape=(len(piece),), data=piece)))


def test_pieces_may_arrive_in_any_order() -> None:
    content = random.Random(1).randbytes(3 * WHOLE_BYTES)
    line, ended, draw = Line(content), list[Any](), random.Random(2)
    sizes = (1000, 0, len(content) - 1000)
    Arrival(7, InPieces(sizes=sizes), post=line.post, rate=LineRate(), ended=ended.append).begin()  # type: ignore[arg-type]
    while line.waiting:
        line.answer(draw.randrange(len(line.waiting)))
    ((head, nothing, rest),) = ended
    assert (bytes(head), bytes(nothing), bytes(rest)) == (content[:1000], b"", content[1000:])


@pytest.mark.parametrize(("rate", "expected"), [(20_000, LEAST_BYTES), (1e6, 100_000), (1e9, MOST_BYTES)])
def test_a_piece_is_as_small_as_the_line_is_slow(rate: float, expected: int) -> None:
    line = LineRate()
    line.begin(0.0)
    for number in range(1, 20):
        line.note(number * 1000 / rate, 1000)
    assert line.bytes_per_second == pytest.approx(rate)
    assert line.piece_bytes == pytest.approx(expected, rel=1e-6)


def test_a_long_round_trip_has_more_pieces_on_the_way() -> None:
    line = LineRate()
    assert line.at_once == 3
    line.note_round_trip(0.6)
    assert line.at_once == 7
    line.note_round_trip(0.05)
    assert line.at_once == 3


def test_what_packing_makes_arrive_later_is_sent_as_it_is() -> None:
    packed = PackedRate()
    assert packed.packs_next(None)
    packed.note(1_000_000, 700_000, 0.0125)  # 80 MB/s, to 0.7 of the size
    assert packed.packs_next(1e6)
    assert not packed.packs_next(200e6)
    packed.note(1_000_000, 1_000_000, 0.0125)  # what packing does not make smaller
    assert not packed.packs_next(1e6)
