"""A bare ROUTER that answers each message: a round trip between two Python processes that does nothing else."""

from __future__ import annotations

import threading
from typing import Any

import zmq

from djinn_evaluation.baselines.answering import serve


class Echo:
    def bind(self, endpoint: str, replied: int | None = None) -> dict[str, Any]:
        """Answer at this endpoint from now on, on a thread that polls as an engine's service does: by the message
        itself, or by as many bytes as are to be `replied`."""
        router = zmq.Context.instance().socket(zmq.ROUTER)
        router.bind(endpoint)
        threading.Thread(target=self._answer, args=(router, replied), daemon=True).start()
        return {}

    def _answer(self, router: zmq.Socket[bytes], replied: int | None) -> None:
        reply = None if replied is None else bytes(replied)
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        while True:
            poller.poll()
            asker, *message = router.recv_multipart(zmq.NOBLOCK)
            router.send_multipart([asker, *(message if reply is None else [reply])], zmq.NOBLOCK, copy=reply is None)


if __name__ == "__main__":
    serve({"bind": Echo().bind})
