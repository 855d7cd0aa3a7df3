"""The exchange between a user's server and Djinn's service of its JupyterHub: a token of the hub and a public key for
an admission and the addresses of engines. JSON, one POST."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from djinn_jupyter.errors import MalformedMessage

SERVICE: Final = "DJINN_HUB"  # the variable of a user's server that has the address of the service
TOKEN: Final = "JUPYTERHUB_API_TOKEN"
MOST_BYTES: Final = 2**16

Exchanged = TypeVar("Exchanged", bound=msgspec.Struct)


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The token is in the header `Authorization: token ...`, as in the hub's own interface."""

    public: str  # spelled as `djinn key list` does


class OfferedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine to which the key is admitted."""

    model: str
    address: str  # HOST:PORT


class Loan(msgspec.Struct, frozen=True, kw_only=True):
    """The admission of a key. It ends `seconds` after the answer; the same exchange renews it."""

    person: str
    seconds: float
    engines_key: str  # the public key by which the engines prove that they are meant
    engines: tuple[OfferedEngine, ...]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with another status than 200; `code` is the class of `djinn_jupyter.errors` to raise."""

    code: str
    message: str


def decode(text: bytes, kind: type[Exchanged]) -> Exchanged:
    """Return a message of the exchange; MalformedMessage for anything else."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"Not a message between a server of a hub and Djinn's service: {error}.") from None
