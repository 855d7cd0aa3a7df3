"""The engines of a JupyterHub, from inside a user's server: its token is exchanged for an admission of this user's key,
which is renewed while this process lives. The secret half of the key stays in its file."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from djinn_jupyter.errors import BY_CODE, EngineUnavailable, KeyRefused, UsageError, WireError
from djinn_jupyter.remote.addresses import draw, entry_at, key_folder, read_address
from djinn_jupyter.settings import short_name
from djinn_jupyter.wire.keys import FoundKeys, read_public, spell_public
from djinn_jupyter.wire.own import host_name
from djinn_jupyter.wire.people import SERVICE, TOKEN, Exchange, Loan, OfferedEngine, Refusal, decode
from djinn_jupyter.wire.registry import Entry

HUB: Final = "hub"  # in place of an address
ASK_SECONDS: Final = 20.0  # the service waits for the hub
AGAIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubService:
    """Djinn's service of the hub of this server, at an address of http or https, and the server's token."""

    address: str
    token: str = field(repr=False)

    @classmethod
    def of_this_server(cls) -> HubService:
        """Return the service that the environment names. UsageError outside of a server of such a hub."""
        address, token = os.environ.get(SERVICE), os.environ.get(TOKEN)
        if not address or not token:
            missing = SERVICE if token else TOKEN
            raise UsageError(
                f"This is no server of a JupyterHub with Djinn's service, {missing} is not set (docs/jupyterhub.md); a "
                f"machine whose name is {HUB} is tcp://{HUB}."
            )
        return cls(address=address, token=token)

    def exchange(self, public: bytes) -> Loan:
        """Admit a key, or extend its admission. EngineUnavailable without an answer; the service's own error."""
        status, answer = self._posted(msgspec.json.encode(Exchange(public=spell_public(public))))
        if status == 200:
            return decode(answer, Loan)
        try:
            refusal = decode(answer, Refusal)
        except WireError:
            raise EngineUnavailable(f"At {self.address} is no service of Djinn (status {status}).") from None
        raise BY_CODE.get(refusal.code, EngineUnavailable)(refusal.message)

    def _posted(self, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a POST, which sends the token to no other address."""
        at = urlsplit(self.address)
        kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}.get(at.scheme)
        if kind is None or at.hostname is None:
            raise UsageError(f"{SERVICE} is no address of http or https: {self.address}.")
        connection = kind(at.hostname, at.port, timeout=ASK_SECONDS)
        try:
            connection.request("POST", at.path or "/", body, {"Authorization": f"token {self.token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            why = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
            raise EngineUnavailable(f"Djinn's service of the hub at {self.address} does not answer ({why}).") from None
        finally:
            connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAdmission:
    """This user's key as admitted."""

    service: HubService
    public: bytes
    secret_file: Path
    loan: Loan

    @classmethod
    def ask(cls) -> HubAdmission:
        """Admit this user's key for hubs, drawing one if needed. Errors as in `exchange`."""
        service = HubService.of_this_server()
        pair, secret_file = key_folder().for_hub(host_name(), draw)
        return cls(service=service, public=pair.public, secret_file=secret_file, loan=service.exchange(pair.public))

    def entry(self, model: str | None) -> Entry:
        """Return the entry of the engine of a model, or of the only one, and trust its key from now on."""
        offer = self._offer(model)
        address = read_address(offer.address)
        found = FoundKeys(key_folder(), f"the hub's service at {self.service.address}")
        found.note(str(address), read_public(self.loan.engines_key))
        found.clear({str(read_address(one.address)) for one in self.loan.engines})
        return entry_at(address, str(self.secret_file))

    def _offer(self, model: str | None) -> OfferedEngine:
        """Return the requested engine. EngineUnavailable where none runs; UsageError where it is ambiguous."""
        offers = self.loan.engines
        if not offers:
            raise EngineUnavailable("The hub has no engine now: its administrator starts one with `djinn serve MODEL`.")
        meant = [one for one in offers if model in (None, one.model, short_name(one.model))]
        there = ", ".join(one.model for one in offers)
        if not meant:
            raise UsageError(f"The hub has no engine of {model}; it has {there}.")
        if model is None and len(meant) > 1:
            raise UsageError(f"The hub has several engines: {there}. Name one: dj.load(MODEL, at={HUB!r}).")
        return meant[0]


class Renewal:
    """Renews an admission at half of its time, in a thread of its own, until it is refused."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._kept: tuple[str, bytes] | None = None  # the token and the key to renew
        self._ended = threading.Event()

    def keep(self, admission: HubAdmission) -> None:
        """Renew this admission from now on, and no other."""
        kept = (admission.service.token, admission.public)
        if self._thread is not None and self._thread.is_alive() and self._kept == kept:
            return
        self.end()
        self._ended, self._kept = threading.Event(), kept
        self._thread = threading.Thread(
            target=_renew, args=(admission, self._ended.wait), name="djinn-hub", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Stop renewing."""
        self._ended.set()


def _renew(admission: HubAdmission, wait: Callable[[float], bool]) -> None:
    """Renew until `wait`, which waits for some seconds, returns True, or the admission is refused."""
    seconds = admission.loan.seconds / 2
    while not wait(seconds):
        try:
            seconds = admission.service.exchange(admission.public).seconds / 2
        except (EngineUnavailable, WireError):  # perhaps the answer of a proxy
            seconds = min(AGAIN_SECONDS, seconds)
        except (KeyRefused, UsageError):
            return  # the next message to the engine reports it
