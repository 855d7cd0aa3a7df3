"""What was recorded of the wire before the first step: it is read today, it becomes the same again, and a
conversation is answered as it was."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import msgspec
import pytest

from djinn_jupyter.wire import codec, replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import StopIdentity
from tests.census.conversation import TOGETHER, talking
from tests.census.recorded import CONVERSATION, MESSAGES, Recorded, differences, read

KINDS: Final = 88  # of requests, at the commit before the first step
# Share is for a person with a key, and the reply to Assemble is that of the request whose pieces were put.
REFUSED: Final = {"Share", "Assemble"}
# Replies about the machine and the moment alone, whose kind is what stays.
OF_THE_MACHINE: Final = {"ReadStatistics", "ReadCopies", "ReadPeople", "ReadProvenance", "Sleep", "Wake", "SendAway"}


def recordings() -> list[Recorded]:
    return [*read(MESSAGES), *read(CONVERSATION)]


def test_every_kind_of_request_is_recorded() -> None:
    kinds = {one.kind for one in recordings()}
    assert len(kinds) == KINDS
    assert kinds - {one.kind for one in recordings() if one.answered_by != "Failed"} == REFUSED


def test_what_was_sent_is_read_and_becomes_the_same_again() -> None:
    """The same bytes; a reply and Hello may have got fields, and a number with a fraction in place of a whole one."""
    for one in recordings():
        asked, told = codec.decode_request(one.request), codec.decode_reply(one.reply)
        again = codec.encode(asked.id, asked.body, asked.trace if asked.traceparent else None)
        if one.kind == "Hello":
            assert _is_within(msgspec.msgpack.decode(one.request[0]), msgspec.msgpack.decode(again[0]))
        else:
            assert [bytes(frame) for frame in again] == one.request, one.kind
        head, *arrays = codec.encode(told.id, told.body)
        assert _is_within(msgspec.msgpack.decode(one.reply[0]), msgspec.msgpack.decode(head)), one.answered_by
        assert [bytes(frame) for frame in arrays] == one.reply[1:], one.answered_by


def test_a_field_that_is_gone_is_found_and_a_new_one_is_not() -> None:
    assert _is_within({"a": [1, {"b": 2}]}, {"a": [1.0, {"b": 2, "new": 0}]})
    assert not _is_within({"a": [1, {"b": 2}]}, {"a": [1, {"new": 0}]})
    assert not _is_within({"a": [1, 2]}, {"a": [1]})


def _is_within(old: Any, new: Any) -> bool:
    """Return whether all of `old` is in `new`."""
    match old, new:
        case dict(), dict():
            return all(name in new and _is_within(value, new[name]) for name, value in old.items())
        case list(), list():
            return len(old) == len(new) and all(map(_is_within, old, new))
    return bool(old == new)


@pytest.mark.processes
def test_a_conversation_is_answered_as_it_was() -> None:
    """Texts, kinds, fields and shapes; numbers as near as another processor makes them."""
    with talking() as talker:
        here = talker.ask(ask.ReadProvenance()).provenance
        apart = {}
        for number, together in enumerate(_steps()):
            replies = talker.answers([_from_here(one, here) for one in together])
            loosely = len(together) > 1 or together[0].kind in OF_THE_MACHINE
            for one, reply in zip(together, replies, strict=True):
                if found := differences(one.reply, reply, loosely=loosely):
                    apart[f"{number} {one.kind}"] = found
    assert apart == {}


def _evaluated(**others: Any) -> replies.Evaluated:
    stop = StopIdentity(session="a", number=10**13, edition=10**13)
    return replies.Evaluated(**{"stop": stop, "value": 1.0, "site": "resid_post.4", "position": 7} | others)


@pytest.mark.parametrize(
    ("now", "path"),
    [
        (_evaluated(value=1.5), "Evaluated.value: 1.0 became 1.5"),
        (_evaluated(site="resid_mid.4"), "Evaluated.site: "),
        (_evaluated(not_kept="The disk is full."), "Evaluated.not_kept: None became "),
        (replies.Cleared(count=1), "Evaluated became Cleared"),
    ],
)
def test_a_reply_that_is_another_is_found(now: replies.Reply, path: str) -> None:
    (found,) = differences(_frames(_evaluated()), _frames(now))
    assert found.startswith(path)


def test_what_belongs_to_the_moment_or_to_a_processor_is_no_difference() -> None:
    later = StopIdentity(session="a", number=10**14, edition=10**14)
    assert differences(_frames(_evaluated()), _frames(_evaluated(value=1.00001, stop=later))) == []


def _frames(reply: replies.Reply) -> list[bytes]:
    return [bytes(frame) for frame in codec.encode(1, reply)]


def _steps() -> Iterator[list[Recorded]]:
    """Yield what is asked together."""
    for together, those in groupby(read(CONVERSATION), key=lambda one: one.by == TOGETHER):
        every = [*those]
        yield from (every[at : at + 1 + together] for at in range(0, len(every), 1 + together))


def _from_here(one: Recorded, here: object) -> list[bytes]:
    """Return the bytes of a request; of one that names the engine, with the engine of today."""
    if one.kind != "SendAway":
        return one.request
    asked = codec.decode_request(one.request)
    return [bytes(frame) for frame in codec.encode(asked.id, msgspec.structs.replace(asked.body, to=here))]
