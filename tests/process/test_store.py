"""Checkpoints of engine processes in a store that speaks S3, a server of moto's on loopback: `make store-test` installs
what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.errors import StorageFailed, UsageError

PROMPT = "The capital of France is"
SECRET = "wholly-secret-key-of-the-store"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("moto") is None, reason="no server of S3 here: make store-test"),
]


class Server:
    """A server of S3 in this process, whose only bucket is `lab`."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.url = "http://{}:{}".format(*self._server.get_host_and_port())
        urlopen(Request(f"{self.url}/moto-api/reset", method="POST")).close()

    def make_bucket(self) -> None:
        import fsspec

        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("lab")

    def stop(self) -> None:
        if self.url:
            self._server.stop()
        self.url = ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anna")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server.make_bucket()
    yield server
    server.stop()


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
