"""The keys of engines that a service has told of, a cluster or a hub. They lie beside those that the user trusts, each
with the name of its service, and go when the service has that engine no more."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from djinn_jupyter.wire.keys import FOUND_BY, KeyFolder, PublicKey, spell_public, write_key_file

KEPT_SECONDS: Final = 60.0  # another process may have found an engine since the list of those that are there was made


class FoundKeys:
    """Those that one service has told. What the user trusts by `djinn key trust` is left as it is."""

    def __init__(self, keys: KeyFolder, service: str) -> None:
        self._keys, self._service = keys, service

    def note(self, place: str, public: PublicKey) -> None:
        """Trust the key of the engine at `HOST:PORT`, also where an earlier one there had another. UsageError where
        the user trusts another key there."""
        if self._keys.found_by(place) is None and self._keys.trusted(place) is not None:
            return self._keys.trust(place, public)
        text = f"{spell_public(public)}{FOUND_BY}{self._service}"
        write_key_file(self._file(place), text.encode(), anew=True)

    def clear(self, there: Collection[str]) -> None:
        """Forget the keys that this service has told, but for those of the last minute and of the engines that are
        `there`: all that the service has."""
        for place in self._keys.names("trusted"):
            if place not in there and self._keys.found_by(place) == self._service and self._is_old(place):
                self._file(place).unlink(missing_ok=True)

    def _is_old(self, place: str) -> bool:
        try:
            return self._keys.now() - self._file(place).stat().st_mtime > KEPT_SECONDS
        except FileNotFoundError:
            return False

    def _file(self, place: str) -> Path:
        return self._keys.folder("trusted") / place
