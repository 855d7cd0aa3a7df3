"""The hub, asked for the user behind a token by its documented interface (`GET /hub/api/user`). Knows no keys.

jupyterhub's HubAuth is not used: it is twenty packages for one request, and keeps an answer for five minutes, for which
a token that was revoked would go on.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from djinn_jupyter.errors import EngineUnavailable, KeyRefused

ASK_SECONDS: Final = 10.0
_TOKEN: Final = re.compile(r"[!-~]{1,500}")
_REFUSALS: Final = frozenset({401, 403, 404})


class _Owner(msgspec.Struct, frozen=True):
    """The hub's answer, as far as it is of use here."""

    kind: str
    name: str
    scopes: frozenset[str]


class Hub:
    """A hub at the address of its interface, and the scopes of which a token needs one to be exchanged."""

    def __init__(self, address: str, scopes: frozenset[str]) -> None:
        self._address, self._scopes = address.rstrip("/"), scopes

    async def user_of(self, token: str) -> str:
        """Return the name of the user whose token it is. KeyRefused where the hub does not know it, or not for this
        service; EngineUnavailable where the hub does not say."""
        if not _TOKEN.fullmatch(token):
            raise KeyRefused("This is no token of a JupyterHub.")
        owner = await self._owner(token)
        if owner.kind != "user":
            raise KeyRefused(f"The token is that of a {owner.kind} of the hub, not of a user.")
        if not owner.scopes & self._scopes:
            raise KeyRefused(
                f"The hub lets {owner.name} not use Djinn by this token: its roles `user` and `server` need the scope "
                f"{max(self._scopes, key=len)} (docs/jupyterhub.md)."
            )
        return owner.name

    async def _owner(self, token: str) -> _Owner:
        request = HTTPRequest(
            f"{self._address}/user",
            headers={"Authorization": f"token {token}"},
            follow_redirects=False,
            request_timeout=ASK_SECONDS,
        )
        try:
            answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        except (OSError, HTTPClientError) as error:
            raise EngineUnavailable(f"The hub at {self._address} does not answer ({error}).") from None
        if answer.code in _REFUSALS:
            raise KeyRefused("The hub does not know this server's token any more: stop your server and start it again.")
        try:
            if answer.code == 200:
                return msgspec.json.decode(answer.body, type=_Owner)
        except msgspec.MsgspecError:
            pass
        raise EngineUnavailable(f"The hub at {self._address} does not say whose token it is (status {answer.code}).")
