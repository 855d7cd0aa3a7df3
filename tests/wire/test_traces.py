"""A message names its trace in one line of known characters, for what it says goes to the engine's log."""

from __future__ import annotations

import msgspec
import pytest

from djinn_jupyter.errors import WireError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.logs import Trace
from djinn_jupyter.wire.requests import Ping

IDS = ("3f" * 16, "9b" * 8)


def test_a_trace_comes_as_it_went() -> None:
    trace = Trace(*IDS, "%djinn_run")
    assert codec.decode_request(codec.encode(1, Ping(), trace)).trace == trace


@pytest.mark.parametrize(
    "trace",
    [
        Trace(*IDS, "%djinn_run\n"),
        Trace(*IDS, "%djinn_run\nINFO Close began"),
        Trace(*IDS, "x" * 65),
        Trace("3F" * 16, IDS[1]),
        Trace(IDS[0], IDS[1][1:]),
        Trace(IDS[0], f"{IDS[1]}\n"),
    ],
)
def test_what_would_forge_a_line_of_the_log_is_no_message(trace: Trace) -> None:
    with pytest.raises(WireError):
        codec.decode_request(codec.encode(1, Ping(), trace))


def test_an_end_of_line_behind_the_ids_is_no_part_of_them() -> None:
    envelope = codec.Envelope(id=1, body=Ping(), traceparent=f"{Trace(*IDS).traceparent}\n")
    with pytest.raises(WireError):
        codec.decode_request([msgspec.msgpack.encode(envelope)])
