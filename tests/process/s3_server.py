"""A server of moto's that speaks S3 on loopback, and the environment by which engines find it: `make store-test`
installs what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from urllib.request import Request, urlopen

import pytest

SECRET = "wholly-secret-key-of-the-store"
needs_s3 = pytest.mark.skipif(find_spec("moto") is None, reason="no server of S3 here: make store-test")


class Server:
    """A server of S3 in this process, whose only bucket is `lab`. What it has outlives a stop."""

    def __init__(self) -> None:
        self._port = 0
        self.start()
        urlopen(Request(f"{self.url}/moto-api/reset", method="POST")).close()

    def start(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()
        host, self._port = self._server.get_host_and_port()
        self.url = f"http://{host}:{self._port}"

    def name_in(self, patch: pytest.MonkeyPatch) -> None:
        """Have the processes that begin from now on find it."""
        patch.setenv("AWS_ENDPOINT_URL", self.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "anna")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def make_bucket(self) -> None:
        import fsspec

        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("lab")

    def names(self) -> list[str]:
        """Return the objects of the bucket."""
        import fsspec

        return fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False).find("lab")

    def stop(self) -> None:
        if self.url:
            self._server.stop()
        self.url = ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    server.name_in(monkeypatch)
    server.make_bucket()
    yield server
    server.stop()
