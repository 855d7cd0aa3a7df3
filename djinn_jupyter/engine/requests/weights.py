"""Read weights, put them to sleep, wake them, and report how layers came through the ring."""

from __future__ import annotations

from djinn_jupyter.engine.forward.device_memory import device_memory_for
from djinn_jupyter.engine.forward.weight_reader import WeightReader
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Copies, WeightRead, WeightsMoved
from djinn_jupyter.wire.texts import in_quotes
from djinn_jupyter.wire.weights import parse_weight


class WeightRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._weights = sessions, runtime.forward.weights
        self._reader = WeightReader(runtime.forward)

    @handles(ask.ReadWeight)
    def read_weight(self, request: ask.ReadWeight, holder: Holder) -> WeightRead:
        name = parse_weight(request.name)
        with device_memory_for(f"a copy of {name}", "Close sessions, or choose heads or columns of it."):
            part = self._reader.read(name, request.rows, request.columns, fold_norm=request.fold_norm)
            return WeightRead(name=str(name), values=to_array(part))

    @handles(ask.Sleep)
    def sleep(self, request: ask.Sleep, holder: Holder) -> WeightsMoved:
        """Put the weights to sleep. Raises IllegalMove while a forward pass is under way, UsageError where the weights
        could not come back."""
        busy = [session.name for session in self._sessions.values() if session.work is not None]
        if busy:
            raise IllegalMove(f"Session {in_quotes(busy[0])} is running and needs the weights; pause it first.")
        seconds = self._weights.sleep()
        return WeightsMoved(weights=self._weights.statistics(), seconds=seconds)

    @handles(ask.Wake)
    def wake(self, request: ask.Wake, holder: Holder) -> WeightsMoved:
        seconds = self._weights.wake()
        return WeightsMoved(weights=self._weights.statistics(), seconds=seconds)

    @handles(ask.ReadCopies)
    def read_copies(self, request: ask.ReadCopies, holder: Holder) -> Copies:
        return Copies(copies=self._weights.copies(request.since))
