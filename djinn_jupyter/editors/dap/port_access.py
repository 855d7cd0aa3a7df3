"""The access of clients on a port: `initialize` first, then the adapter's token in launch or attach. Any program or
page on this machine can connect to a port, so a port never runs a model's own code."""

from __future__ import annotations

import secrets
from typing import Final

from djinn_jupyter.editors.dap.protocol import Request
from djinn_jupyter.errors import IllegalMove, KeyRefused, UsageError

OPENING_BYTES: Final = 4 * 2**20  # the most that a message has before the token is shown
_BEGINNINGS: Final = frozenset({"launch", "attach"})


class PortAccess:
    """The access of one connection. `admitted` becomes True with the token, which is text of ASCII."""

    def __init__(self, token: str) -> None:
        self._token, self._initialized = token.encode(), False
        self.admitted = False

    def check(self, request: Request) -> None:
        """Raise IllegalMove for a request that comes before `initialize`; KeyRefused for a launch or attach without
        the token, without which nothing is debugged; UsageError for one that would run a model's own code."""
        if request.command == "disconnect":
            return
        if request.command == "initialize":
            self._initialized = True
        elif not self._initialized:
            raise IllegalMove(f"{request.command}: a conversation begins with `initialize`.")
        elif request.command in _BEGINNINGS:
            given = request.arguments if isinstance(request.arguments, dict) else {}
            self._check_token(request.command, given.get("token"))
            _require_no_code(request.command, given.get("trust_remote_code"))

    def _check_token(self, command: str, token: object) -> None:
        if not isinstance(token, str) or not secrets.compare_digest(token.encode(errors="replace"), self._token):
            said = "has no `token`" if token is None else "has another `token`"
            raise KeyRefused(f"The {command} {said}: give the one that `djinn dap --port` printed with its port.")
        self.admitted = True


def _require_no_code(command: str, wanted: object) -> None:
    if wanted not in (None, False):
        raise UsageError(
            f"{command}: `trust_remote_code` runs a model's own code, which an adapter on a port never does; start the "
            "engine with `djinn start MODEL --trust-remote-code`, then attach."
        )
