"""Replies and requests that are larger than a message go over a line in pieces."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from djinn_jupyter.api.batches import run_until_stop
from djinn_jupyter.errors import DjinnError, EngineError, KeyRefused, OverQuota, UnknownSession
from djinn_jupyter.link import io_thread
from djinn_jupyter.link.channel import SocketChannel, ask_for
from djinn_jupyter.link.io_thread import IoThread, SoFar
from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.connection import GIVEN_UP
from djinn_jupyter.remote.engine import large_messages
from djinn_jupyter.remote.large_messages import LEAST_BYTES, Arrival, PackedRate, TransferRate, Upload
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.people import Quota
from djinn_jupyter.wire.pieces import MOST_BYTES, WHOLE_BYTES, Assemble, PieceRead, PieceTaken, PutPiece
from tests.process.afar import MESSAGE_BYTES, afar, entry_of, opened, taken_by, until
from tests.process.fake_engine import FakeSession
from tests.process.large_request import NUMBERS, edit, pieces_of_frames
from tests.process.rough_line import RoughLine
from tests.process.served import Served, served

pytestmark = pytest.mark.usefixtures("keys")


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

    house.engine._handle = answered


async def test_a_large_reply_comes_in_pieces_bit_for_bit_and_a_small_one_whole() -> None:
    values = activations()
    async with afar() as (house, _, connection):
        holds(house, values)
        taken = _pieces_of(house)
        await connection.ask(ask.Open(session="paris"))
        assert taken == []
        assert await logits_of(connection) == values
        asked = [one for one in taken if isinstance(one, ask.ReadPiece)]
        assert len(asked) > 1
        assert max(one.count for one in asked) <= MOST_BYTES
        await until(lambda: len(house.service._in_pieces.replies) == 0)
        assert connection.wire_bytes.arrays_received < values.nbytes  # what is packed is fewer


async def logits_of(connection: Connection) -> Array:
    read = await connection.ask(ask.ReadLogits(session="paris"))
    assert isinstance(read, told.Logits)
    return read.logits


async def test_over_a_private_folder_it_comes_and_goes_whole() -> None:
    values, large = activations(), edit(numbers=NUMBERS // 4)
    with served() as house:
        holds(house, values)
        taken, pieces, asked = _pieces_of(house), _pieces_of_requests(house), taken_by(house)
        connection = await opened(house.entry)
        await connection.ask(ask.Open(session="paris"))
        assert await logits_of(connection) == values
        await connection.ask(large)
        assert (taken, pieces, asked[-1]) == ([], [], large)
        await connection.close()


async def test_a_line_that_is_lost_in_the_midst_of_an_array_goes_on_where_it_was() -> None:
    values = activations(4 * NUMBERS)
    async with afar() as (house, relay, connection):
        holds(house, values)
        await connection.ask(ask.Open(session="paris"))
        pieces = _pieces_of(house)
        taken = taken_by(house)
        reading = asyncio.ensure_future(logits_of(connection))
        await until(lambda: _progress(connection).done > 2 * WHOLE_BYTES)
        relay.cut()
        await until(lambda: connection.down_since is not None)
        before = _progress(connection).done
        assert 0 < before < values.nbytes
        await relay.mend()
        assert await reading == values
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
        await until(lambda: _progress(connection).done > 0)
        connection.give_up(number)
        with pytest.raises(EngineError, match="given up on its way"):
            await reading
        assert isinstance(await connection.ask(ask.Describe(session="paris")), told.Described)
        await until(lambda: len(house.service._in_pieces.replies) == 0)
        assert await logits_of(connection) == values


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
        await until(lambda: len(house.service._in_pieces.replies) == 0)


async def test_an_interrupt_ends_the_waiting_and_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a line of 2 MB/s, in the thread of a cell. What is asked for next has not to wait for the rest."""
    values, shown = activations(4 * NUMBERS), list[SoFar]()

    def cell(channel: SocketChannel) -> told.Reply:
        channel.show_receiving(_interrupting(shown, monkeypatch))
        ask_for(channel, ask.Open(session="paris"))
        with pytest.raises(KeyboardInterrupt):
            ask_for(channel, ask.ReadLogits(session="paris"))
        return ask_for(channel, ask.Describe(session="paris"))

    with served(tcp=True) as house:
        holds(house, values)
        pieces = _pieces_of(house)
        async with _slow_channel(house, 2e6) as channel:
            assert isinstance(await asyncio.to_thread(cell, channel), told.Described)
            assert pieces[-1] == ask.DropPieces(of=pieces[0].of)
            asked = sum(one.count for one in pieces if isinstance(one, ask.ReadPiece))
            assert asked < values.nbytes / 4
            assert shown[0].total > values.nbytes


def _interrupting(shown: list[SoFar], patch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what interrupts the cell once a part is there."""
    patch.setattr(io_thread, "SHOWN_SECONDS", 0.0)
    patch.setattr(io_thread, "LOOK_SECONDS", 0.05)

    def interrupt(progress: SoFar, *, over: bool) -> None:
        shown.append(progress)
        if progress.done and not over:
            raise KeyboardInterrupt

    return interrupt


async def test_no_other_client_reads_a_piece_of_it() -> None:
    """Another connection of the same key names the same number, before and while it is there."""
    async with afar() as (house, _, connection):
        holds(house, activations(4 * NUMBERS))
        await connection.ask(ask.Open(session="paris"))
        other = await opened(entry_of(house), "kernel-2")
        number = connection._number + 1
        reading = asyncio.ensure_future(connection.ask(ask.ReadLogits(session="paris")))
        await until(lambda: len(house.service._in_pieces.replies) == 1)
        with pytest.raises(EngineError, match="not there any more"):
            await other.ask(ask.ReadPiece(of=number, start=0, count=1))
        await other.ask(ask.DropPieces(of=number))
        assert isinstance(await reading, told.Logits)
        await other.close()


async def test_what_is_on_its_way_goes_with_its_client() -> None:
    """A reply and a request."""
    async with afar() as (house, _, connection):
        holds(house, activations(4 * NUMBERS))
        await connection.ask(ask.Open(session="paris"))
        reading = asyncio.ensure_future(logits_of(connection))
        await until(lambda: _progress(connection).done > 0)
        editing = asyncio.ensure_future(connection.ask(edit(numbers=8 * NUMBERS)))
        await until(lambda: len(house.service._in_pieces.requests) > 0)
        await connection.close()
        for asked in (reading, editing):
            with pytest.raises(DjinnError):
                await asked
        await until(lambda: len(house.service._in_pieces.replies) == len(house.service._in_pieces.requests) == 0)


def _progress(connection: Any) -> SoFar:
    """Return how far the reply is; of one that has not begun, or has arrived, nothing."""
    nothing = SoFar(way="received", done=0, total=1, carried=0, seconds=1.0)
    return next((one.progress for one in connection._large.values() if isinstance(one, Arrival)), nothing)


def _pieces_of(house: Served) -> list[ask.Request]:
    """Return the list of all requests for pieces that the service takes from here on."""
    taken: list[ask.Request] = []
    in_pieces = house.service._in_pieces
    answer = in_pieces.answer

    def note(client: bytes, request: Any, answered: Any) -> None:
        taken.append(request)
        answer(client, request, answered)

    in_pieces.answer = note
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
    Arrival(7, sizes, post=line.post, rate=TransferRate(), ended=ended.append).begin()
    while line.waiting:
        line.answer(draw.randrange(len(line.waiting)))
    ((head, nothing, rest),) = ended
    assert (bytes(head), bytes(nothing), bytes(rest)) == (content[:1000], b"", content[1000:])


@pytest.mark.parametrize(("rate", "expected"), [(20_000, LEAST_BYTES), (1e6, 100_000), (1e9, MOST_BYTES)])
def test_a_piece_is_as_small_as_the_line_is_slow(rate: float, expected: int) -> None:
    line = TransferRate()
    line.begin(0.0)
    for number in range(1, 20):
        line.note(number * 1000 / rate, 1000)
    assert line.bytes_per_second == pytest.approx(rate)
    assert line.piece_bytes == pytest.approx(expected, rel=1e-6)


def test_a_long_round_trip_has_more_pieces_on_the_way() -> None:
    line = TransferRate()
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


async def test_a_large_request_goes_in_pieces_bit_for_bit_and_a_small_one_whole() -> None:
    async with afar() as (house, _, connection):
        taken, pieces = taken_by(house), _pieces_of_requests(house)
        await connection.ask(ask.Open(session="paris"))
        assert pieces == []
        large = edit()
        assert isinstance(await connection.ask(large), told.Edited)
        assert taken[1:] == [large]
        assert len(pieces) > 1
        assert max(piece.count for piece in pieces) <= MOST_BYTES
        assert sum(piece.count for piece in pieces) == sum(pieces[0].sizes)
        assert len(house.service._in_pieces.requests) == 0
        assert connection.wire_bytes.arrays_sent < _array(large).nbytes  # what is packed is fewer
        assert not connection._large


async def test_what_is_asked_for_meanwhile_does_not_wait_for_it() -> None:
    async with afar() as (house, _, connection):
        taken = taken_by(house)
        await connection.ask(ask.Open(session="paris"))
        editing = asyncio.ensure_future(connection.ask(edit(numbers=8 * NUMBERS)))
        await until(lambda: _done(connection) > 0)
        await connection.ask(ask.Describe(session="paris"))
        assert not editing.done()
        await editing
        assert [type(request).__name__ for request in taken] == ["Open", "Describe", "ApplyEdit"]


async def test_a_line_that_is_lost_in_its_midst_goes_on_where_it_was_and_it_is_done_once() -> None:
    async with afar() as (house, relay, connection):
        taken, pieces = taken_by(house), _pieces_of_requests(house)
        await connection.ask(ask.Open(session="paris"))
        large = edit(numbers=8 * NUMBERS)
        editing = asyncio.ensure_future(connection.ask(large))
        await until(lambda: _done(connection) > 2**20)
        relay.cut()
        await until(lambda: connection.down_since is not None)
        assert 0 < _done(connection) < _array(large).nbytes
        await relay.mend()
        assert isinstance(await editing, told.Edited)
        assert taken[1:] == [large]
        twice = sum(piece.count for piece in pieces) - sum(pieces[0].sizes)
        assert twice <= 8 * MOST_BYTES  # those that were on the way


async def test_a_line_that_is_lost_behind_its_last_piece_does_it_once() -> None:
    async with afar() as (house, relay, connection):
        taken = taken_by(house)
        await connection.ask(ask.Open(session="paris"))
        assemble = house.service._assemble

        def lost(client: bytes, number: int, person: str | None) -> None:
            relay.swallows_replies = True
            assemble(client, number, person)

        house.service._assemble = lost
        large = edit()
        editing = asyncio.ensure_future(connection.ask(large))
        await until(lambda: relay.swallowed > 0 and len(taken) == 2)
        relay.cut()
        await until(lambda: connection.down_since is not None)
        await relay.mend()
        assert isinstance(await editing, told.Edited)
        assert taken[1:] == [large]


async def test_the_next_engine_is_sent_all_of_it() -> None:
    async with afar() as (_, relay, connection):
        await connection.ask(ask.Open(session="paris"))
        large = edit(numbers=8 * NUMBERS)
        editing = asyncio.ensure_future(connection.ask(large))
        await until(lambda: _done(connection) > 2**20)
        with served(tcp=True, message_bytes=MESSAGE_BYTES) as anew:
            anew.engine.sessions["ada@paris"] = FakeSession(name="ada@paris", owner="ada", holder="kernel-1")
            taken = taken_by(anew)
            relay.cut()
            relay.lead_to(entry_of(anew))
            await relay.mend()
            assert isinstance(await editing, told.Edited)
            assert taken == [large]
            await until(lambda: len(anew.service._in_pieces.requests) == 0)


async def test_a_request_that_is_taken_back_is_not_done_and_the_line_is_free_at_once() -> None:
    async with afar() as (house, _, connection):
        taken = taken_by(house)
        await connection.ask(ask.Open(session="paris"))
        editing = asyncio.ensure_future(connection.ask(edit(numbers=8 * NUMBERS)))
        await until(lambda: _done(connection) > 0)
        connection.give_up(_number_of_large(connection))
        with pytest.raises(EngineError, match="taken back on its way, and nothing of it was done"):
            await editing
        assert isinstance(await connection.ask(ask.Describe(session="paris")), told.Described)
        await until(lambda: len(house.service._in_pieces.requests) == 0)
        assert [type(request).__name__ for request in taken] == ["Open", "Describe"]
        assert isinstance(await connection.ask(edit()), told.Edited)


async def test_somebody_else_closes_the_session_in_the_midst() -> None:
    async with afar() as (house, _, connection):
        await connection.ask(ask.Open(session="paris"))
        other = await opened(entry_of(house), "kernel-2")
        editing = asyncio.ensure_future(connection.ask(edit(numbers=8 * NUMBERS)))
        await until(lambda: _done(connection) > 0)
        await other.ask(ask.Close(session="paris"))
        with pytest.raises(UnknownSession):
            await editing
        assert len(house.service._in_pieces.requests) == 0
        assert isinstance(await connection.ask(ask.Open(session="paris")), told.Opened)
        await other.close()


async def test_who_is_revoked_in_the_midst_is_told_so_and_leaves_nothing_behind() -> None:
    async with afar() as (house, _, connection):
        taken = taken_by(house)
        await connection.ask(ask.Open(session="paris"))
        editing = asyncio.ensure_future(connection.ask(edit(numbers=16 * NUMBERS)))
        await until(lambda: _done(connection) > 0)
        own.key_folder().revoke("ada")
        with pytest.raises(KeyRefused, match="does not admit"):
            await editing
        await until(lambda: len(house.service._in_pieces.requests) == 0)
        assert [type(request).__name__ for request in taken] == ["Open"]


async def test_no_other_client_adds_to_it_or_has_it_done() -> None:
    async with afar() as (house, _, connection):
        taken = taken_by(house)
        await connection.ask(ask.Open(session="paris"))
        other = await opened(entry_of(house), "kernel-2")
        large = edit(numbers=8 * NUMBERS)
        editing = asyncio.ensure_future(connection.ask(large))
        await until(lambda: _done(connection) > 0)
        number = _number_of_large(connection)
        with pytest.raises(EngineError, match="nothing of it was done"):
            await other.ask(PutPiece(of=number, start=2**16, count=4, content=Array.of_bytes(b"evil")))
        with pytest.raises(EngineError, match="nothing of it was done"):
            await other.ask(Assemble())
        await other.ask(ask.DropPieces(of=number))
        await editing
        assert taken[1:] == [large]
        await other.close()


async def test_a_person_has_no_more_on_the_way_than_their_quota_of_host_memory() -> None:
    async with afar() as (house, _, connection):
        house.service._in_pieces._budget_of = lambda person: Quota(host=2**20)
        await connection.ask(ask.Open(session="paris"))
        with pytest.raises(OverQuota, match=r"ada's quota of host memory is 1.00 MiB: this request has 4.00 MiB"):
            await connection.ask(edit())
        assert isinstance(await connection.ask(edit(numbers=NUMBERS // 4)), told.Edited)
        assert len(house.service._in_pieces.requests) == 0


async def test_beside_one_of_any_size_a_person_has_no_more_on_the_way_than_is_kept_for_a_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_messages, "MOST_UNREAD", 2**20)
    async with afar() as (_, _, connection):
        await connection.ask(ask.Open(session="paris"))
        first = asyncio.ensure_future(connection.ask(edit(numbers=8 * NUMBERS)))
        await until(lambda: _done(connection) > 0)
        with pytest.raises(EngineError, match="requests of yours are on their way"):
            await connection.ask(edit())
        assert isinstance(await first, told.Edited)


async def test_what_is_put_together_is_read_as_a_request_is() -> None:
    """Not one of another number, nor bytes that are none, nor one that no client sends in pieces."""
    async with afar() as (_, _, connection):
        number = connection._number
        for frames_of in (
            lambda number: codec.encode(number + 1, edit()),
            lambda number: [b"nonsense"],
            lambda number: codec.encode(number, ask.DropPieces(of=1)),
        ):
            number += 100
            for piece in pieces_of_frames(number, frames_of(number)):
                assert isinstance(await connection.ask(piece), PieceTaken)
            connection._number = number - 1
            with pytest.raises(DjinnError, match=r"no request of this number|Not a message of this protocol"):
                await connection.ask(Assemble())
        await connection.ask(ask.Ping())


async def test_an_interrupt_takes_a_long_prompt_back_and_pauses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a line of 1 MB/s, in the thread of a cell; it is told how far the request is."""
    shown = list[SoFar]()

    def cell(channel: SocketChannel) -> told.Reply:
        run = ask.Run(session="paris", tokens=tuple(range(70_000, 570_000)), max_new_tokens=1)
        ask_for(channel, ask.Open(session="paris"))
        channel.show_receiving(_interrupting(shown, monkeypatch))
        with pytest.raises(KeyboardInterrupt):
            run_until_stop(channel, "paris", run, None)
        with pytest.raises(KeyboardInterrupt):
            run_until_stop(channel, "paris", run, lambda token: None)
        return ask_for(channel, ask.Describe(session="paris"))

    with served(tcp=True) as house:
        taken = taken_by(house)
        async with _slow_channel(house, 1e6) as channel:
            described = await asyncio.to_thread(cell, channel)
        assert isinstance(described, told.Described)
        assert not any(isinstance(request, ask.Run | ask.Pause) for request in taken)
        assert shown[0].way == "sent"
        assert str(shown[0]).startswith("sending ")
        assert shown[0].total > 2**20


class _slow_channel:
    """A channel over a line that carries so many bytes a second."""

    def __init__(self, house: Served, bytes_per_second: float) -> None:
        address = read_address(entry_of(house).commands)
        self._thread = IoThread()
        self._line = RoughLine(
            engine=(address.host, address.port), delay_seconds=0.01, lost_share=0.0, bytes_per_second=bytes_per_second
        )

    async def __aenter__(self) -> SocketChannel:
        await self._line.mend()
        entry = entry_at(read_address(f"127.0.0.1:{self._line.port}"), "ada")
        opening = functools.partial(SocketChannel, self._thread, entry, holder="kernel-1", user="ada", notebook=None)
        self._channel = await asyncio.to_thread(opening)
        return self._channel

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._channel.close)
        self._line.cut()
        self._thread.stop()


def _pieces_of_requests(house: Served) -> list[PutPiece]:
    """Return the list of all pieces of requests that the service takes from here on."""
    taken: list[PutPiece] = []
    in_pieces = house.service._in_pieces
    put = in_pieces.put

    def note(client: bytes, piece: PutPiece, answer: Callable[[told.Reply], None], key: bytes, person: Any) -> None:
        taken.append(piece)
        put(client, piece, answer, key, person)

    in_pieces.put = note
    return taken


def _done(connection: Any) -> int:
    """Return the bytes of the oldest large request that the engine has; of one that has not begun, or is whole,
    none."""
    return next((one.progress.done for one in connection._large.values() if isinstance(one, Upload)), 0)


def _number_of_large(connection: Any) -> int:
    (number,) = connection._large
    return int(number)


def _array(request: ask.ApplyEdit) -> Array:
    assert isinstance(request.edit, Set)
    return request.edit.value
