"""The base of everything that crosses the wire: immutable, named fields only, unknown fields refused."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value. Says so to type checkers too, for which msgspec's options do not carry to subclasses."""
