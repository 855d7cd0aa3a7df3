"""Add adapters to the model, list and remove them, and have sessions compute with them. Their tensors come in the
request and are checked here."""

from __future__ import annotations

from djinn_jupyter.engine.model.added.low_rank import HeldAdapter, LowRank
from djinn_jupyter.engine.requests.drawing import draw_for
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.lines import require_empty
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.adapters import described, require_name
from djinn_jupyter.engine.session.fitting import Fitted, fitted
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.adapters import AdapterDescription, AdapterIdentity
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.replies import AdapterAdded, Adapters, Cleared, Described
from djinn_jupyter.wire.texts import in_quotes


class AdapterRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._runtime, self._adapters = sessions, runtime, runtime.modules.adapters

    @handles(ask.AddAdapter)
    def add_adapter(
        self, request: ask.AddAdapter, session: Session, holder: Holder
    ) -> Steps[AdapterAdded] | AdapterAdded:
        require_empty(session, "add an adapter", "engine.add_adapter")
        require_name(request.name)
        parts = fitted(self._runtime.forward, request.modules)
        identity = AdapterIdentity(name=request.name, folder=request.folder, digest=request.digest)
        there = self._adapters.same(holder.person, identity)
        if there is not None and there.missing is None:
            return AdapterAdded(adapter=self._described(there), existed=True)
        return self._adding(session, there or HeldAdapter(identity=identity), parts, holder)

    def _adding(
        self, session: Session, adapter: HeldAdapter, parts: list[Fitted], holder: Holder
    ) -> Steps[AdapterAdded]:
        """Put the matrices on the devices of their layers, a module a step, and then the adapter among the others."""
        size = sum(part.nbytes for part in parts)
        yield from draw_for(self._adapters, size, self._runtime, session)
        try:
            products: list[LowRank] = []
            for part in parts:
                products.append(part.on_device())
                yield None
            if self._adapters.same(holder.person, adapter.identity) not in (None, adapter):
                raise UsageError(f"The adapter {adapter.name} was added meanwhile.")
            self._adapters.put(holder.person, adapter)
        except BaseException:
            self._adapters.give_back(size)
            raise
        adapter.arrive(products, size)
        return AdapterAdded(adapter=self._described(adapter))

    @handles(ask.ListAdapters)
    def list_adapters(self, request: ask.ListAdapters, holder: Holder) -> Adapters:
        return Adapters(adapters=tuple(map(self._described, self._adapters.of(holder.person))))

    @handles(ask.RemoveAdapter)
    def remove_adapter(self, request: ask.RemoveAdapter, holder: Holder) -> Cleared:
        adapter = self._adapters.find(holder.person, request.name)
        computing = ", ".join(in_quotes(label(name)) for name in self._computing_with(adapter))
        if computing:
            raise UsageError(f"Session {computing} computes with the adapter {adapter.name}; close it first.")
        self._adapters.take_out(holder.person, adapter)
        return Cleared(count=1)

    @handles(ask.SetAdapter)
    def set_adapter(self, request: ask.SetAdapter, session: Session, holder: Holder) -> Described:
        """Choose the adapter of a session that holds no line yet."""
        person = person_of(session.name)
        wanted = None if request.adapter is None else self._adapters.find(person, request.adapter)
        if wanted is not session.adapter:
            self._require_no_line(session)
            session.compute_with(session.attention, wanted)
        return Described(session=reports.describe(session))

    def _require_no_line(self, session: Session) -> None:
        if session.state != "idle" or session.tokens:
            how = "without an adapter" if session.adapter is None else f"with the adapter {session.adapter.name}"
            raise IllegalMove(
                f"Session {in_quotes(label(session.name))} has a line that was computed {how}, and its keys and values "
                "are no others' to go on from; choose an adapter in a new session, or make this one fresh."
            )

    def _described(self, adapter: HeldAdapter) -> AdapterDescription:
        return described(adapter, self._computing_with(adapter))

    def _computing_with(self, adapter: HeldAdapter) -> tuple[str, ...]:
        return tuple(name for name, session in self._sessions.items() if session.adapter is adapter)
