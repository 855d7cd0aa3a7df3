"""Questions before work is spread over engines: would this one begin it? Nothing is begun and nothing written."""

from __future__ import annotations

import msgspec

from djinn_jupyter.wire.collecting import CollectFields
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.sweeps import Sweep, SweepFields


class Checked(ReplyBase):
    """The work would begin. `alike` is what all shards of a collection have to say of their values alike, by its names;
    empty for a sweep."""

    alike: tuple[tuple[str, str], ...] = ()


class CheckSweep(SweepFields[Checked], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Refuse what a Sweep of the same fields would be refused for before it computes."""

    @property
    def asked(self) -> Sweep:
        """The sweep, of which an engine makes its recipe."""
        return Sweep(**msgspec.structs.asdict(self))


class CheckCollect(CollectFields[Checked], changes=False, wakes_weights=True, whole_layers=True):
    """Refuse what a Collect of the same fields would be refused for before it computes: also a folder that the engine
    cannot write, or that has another collection."""


CheckRequest = CheckCollect | CheckSweep
