"""The fields of a format that is read: computed, harmless, or refused by name. There is one table for each format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """The names of all fields. The reader of a format reads and checks `computed` ones, and `harmless` ones change no
    number. Each of `refused` has the value at which it changes none, and the advice for any other value."""

    computed: frozenset[str]
    harmless: frozenset[str]
    refused: Mapping[str, tuple[object, str]]

    def __contains__(self, name: str) -> bool:
        return name in self.computed or name in self.harmless or name in self.refused

    def unheard(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that could change a number and are not computed here, unknown ones included."""
        heard = self.computed | self.harmless
        return {name: value for name, value in said.items() if name not in heard and not self.is_unset(name, value)}

    def is_unset(self, name: str, value: object) -> bool:
        """Return whether a field has no effect at a value: null, false, empty, or the default of its class."""
        default = self.refused.get(name, (None, ""))[0]
        empty = value is None or value is False or (isinstance(value, str | list | tuple | dict) and not value)
        return empty or (isinstance(value, bool) == isinstance(default, bool) and value == default)

    def require_heard(self, said: Mapping[str, Any], where: str) -> None:
        """Raise UsageError, which names the field, where a declaration has one that is not computed here."""
        for name, value in self.unheard(said).items():
            advice = self.refused.get(name, (None, ""))[1]
            raise UsageError(f"{where} has {name} {short(value)}, which is not computed here{advice and '; '}{advice}.")

    def unknown(self, said: Iterable[str]) -> list[str]:
        """Return the fields that are in no table."""
        return [name for name in said if name not in self]


def short(value: object) -> str:
    """Return how a message shows a value of a file."""
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."
