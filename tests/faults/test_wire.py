"""Faults of the wire: values of bfloat16 do not cross it, and a client's bytes are unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError, MalformedMessage
from djinn_jupyter.wire import arrays, codec
from djinn_jupyter.wire.requests import Ping
from tests.engine.desk import tokens
from tests.faults.inside import Inside, moved

PROMPT = list(tokens(12))


def look_and_put_back(engine: RemoteEngine) -> None:
    """Read the value of a stop, bit for bit, and put it back from the client, which changes nothing."""
    session = engine.session("bf16", fresh=True)
    expected = session.run(PROMPT, max_new_tokens=3, ignore_eos=True)
    logits = expected.logits
    session.breakpoint("resid_post.4", when="step == 0")
    stop = session.run(PROMPT, max_new_tokens=3, ignore_eos=True)
    hidden: Any = stop.hidden
    assert hidden.dtype == ml_dtypes.bfloat16
    session.edit(dj.set_to(hidden))
    done = session.resume()
    assert done.tokens == expected.tokens
    assert np.array_equal(done.logits, logits)


def test_bfloat16_is_refused_by_the_wire(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = inside.desk(dtype="bfloat16")
    assert desk.engine.model.dtype == torch.bfloat16
    with moved(desk) as engine:
        look_and_put_back(engine)
        known = {name: size for name, size in arrays.ITEM_BYTES.items() if name != "bfloat16"}
        monkeypatch.setattr(arrays, "ITEM_BYTES", known)
        with pytest.raises(DjinnError, match="bfloat16"):
            look_and_put_back(engine)
    desk.close(*desk.engine.sessions)


class Bomb:
    """Runs code where it is unpickled."""

    went_off = 0

    def __reduce__(self) -> Any:
        return _go_off, ()


def _go_off() -> int:
    Bomb.went_off += 1
    return Bomb.went_off


def send_a_bomb() -> None:
    """Send a pickle, in the head and as an array: it is refused as no message of ours, and nothing in it has run."""
    Bomb.went_off = 0
    bomb = pickle.dumps(Bomb())
    for frames in ([bomb], [codec.encode(1, Ping())[0], bomb]):
        with pytest.raises(MalformedMessage):
            codec.decode_request(frames)
    assert Bomb.went_off == 0


def test_bytes_of_clients_are_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    send_a_bomb()
    decode = codec.decode_request

    def unpickling(frames: Sequence[Any]) -> Any:
        for frame in frames:
            if bytes(frame[:1]) == b"\x80":
                pickle.loads(frame)  # noqa: S301  the fault that is planted
        return decode(frames)

    monkeypatch.setattr(codec, "decode_request", unpickling)
    with pytest.raises(AssertionError):
        send_a_bomb()
