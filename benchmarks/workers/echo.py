"""A bare ROUTER that sends each message back: a round trip between two Python processes that does nothing else."""

from __future__ import annotations

import threading
from typing import Any

import zmq

from djinn_jupyter.experiments.baselines.answering import serve


class Echo:
    def bind(self, endpoint: str) -> dict[str, Any]:
        """Answer at this endpoint from now on, on a thread that polls as an engine's service does."""
        router = zmq.Context.instance().socket(zmq.ROUTER)
        router.bind(endpoint)
        threading.Thread(target=self._answer, args=(router,), daemon=True).start()
        return {}

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        while True:
            poller.poll()
            router.send_multipart(router.recv_multipart(zmq.NOBLOCK), zmq.NOBLOCK)


if __name__ == "__main__":
    serve({"bind": Echo().bind})
