"""Checkpoints of engine processes in a store that speaks S3, a server of moto's on loopback: `make store-test` installs
what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.errors import StorageFailed, UsageError
from tests.process.s3_server import SECRET, Server, needs_s3, server

__all__ = ["server"]

PROMPT = "The capital of France is"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_s3,
]


def test_a_checkpoint_goes_by_a_store_to_another_engine_bit_for_bit(server: Server, runtime: Path) -> None:
    one = dj.load("demo", threads=1, checkpoints="s3://lab/djinn")
    session = one.session("paris")
    session.breakpoint("resid_post.4", when="step == 2")
    hidden = torch.as_tensor(session.run(PROMPT, max_new_tokens=6).hidden)
    saved = session.checkpoint("noon")
    other = dj.beside(one, "2")
    assert [kept.name for kept in other.checkpoints()] == ["noon"]
    with pytest.raises(UsageError, match="There is a checkpoint 'noon' already"):
        other.session("rome").checkpoint("noon")
    restored = other.restore("noon", "paris")
    assert torch.equal(torch.as_tensor(restored.stop.hidden), hidden)
    there, here = restored.resume(), session.resume()
    assert there.tokens == here.tokens
    assert torch.equal(torch.as_tensor(there.logits), torch.as_tensor(here.logits))
    assert saved.checkpoint.bytes_stored > 0
    server.stop()
    with pytest.raises(StorageFailed, match=r"^s3://lab/djinn could not be written to: .*\.$"):
        session.checkpoint("night")
    assert session.describe().state == "idle"
    assert one.sessions()
    written = [path.read_bytes() for path in runtime.parent.rglob("*") if path.is_file()]
    assert any(b"s3://lab/djinn" in one for one in written)  # the entries of the registry have the option
    assert not any(SECRET.encode() in one for one in written)


def test_an_engine_does_not_start_where_there_is_no_place_for_its_checkpoints(server: Server, runtime: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no place for checkpoints at s3://nobody/djinn .*: make its bucket"):
        dj.load("demo", checkpoints="s3://nobody/djinn")
    server.stop()
    with pytest.raises(StorageFailed, match=r"^s3://lab/djinn could not be written to: Could not connect"):
        dj.load("demo", checkpoints="s3://lab/djinn")
