"""The worker's side of a baseline or benchmark: one JSON object a line in and out; prints go to standard error."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Verb = Callable[..., dict[str, Any]]


def serve(verbs: Mapping[str, Verb]) -> None:
    """Answer requests until the input ends. A verb that raises is answered with its error; the process goes on."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = verbs[request.pop("verb")](**request)
        except Exception as error:  # noqa: BLE001  the process's edge: the asker is told
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
