"""Add modules and adapters to the model, list and remove them. Their tensors come in the request and are checked
here."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.requests import bounds
from djinn_jupyter.engine.requests.handlers import handles
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.residence import Pieces, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import IllegalMove, UnknownSite, UsageError
from djinn_jupyter.modules.engine import added, checks, processed_values
from djinn_jupyter.modules.engine.arithmetic import HeldAdapter, LowRank
from djinn_jupyter.wire import base, sites
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import TRANSCODERS, AdapterDescription, AdapterIdentity, ModuleIdentity
from djinn_jupyter.wire.replies import AdapterAdded, Adapters, AddedModules, Cleared, Described, ModuleAdded
from djinn_jupyter.wire.texts import in_quotes, label, shown


class AddedModuleRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._runtime = sessions, runtime
        self._added, self._anatomy = runtime.modules.table, runtime.forward.anatomy

    @handles(ask.AddModule)
    def add_module(self, request: ask.AddModule, session: Session, holder: Holder) -> Steps[ModuleAdded] | ModuleAdded:
        bounds.require_empty(session, "add a module", "engine.add_module")
        if request.form.kind in TRANSCODERS and self._runtime.forward.split:
            raise UsageError(
                "A model that --tensor-parallel splits takes no transcoder, which reads and writes an MLP at once; "
                "load it in an engine without."
            )
        arrays = _arrays(request)
        inputs, features = checks.widths_of(request.form, arrays)
        if request.form.centered:
            added.require_centering(self._anatomy)
        point = added.point_of(request.name, request.at, self._runtime.forward.anatomy, inputs)
        identity = ModuleIdentity(
            name=request.name,
            at=str(point.site),
            form=request.form,
            inputs=inputs,
            features=features,
            folder=request.folder,
            digest=request.digest,
            error_term=request.error_term,
            bytes_held=checks.bytes_of(request.form, arrays),
        )
        checks.require_layers(request.form, arrays, point.site.layer or 0, len(self._anatomy.layers))
        checks.require_written(request.form, arrays, added.written_width(identity, self._anatomy))
        processed = processed_values.processed_at(self._runtime.forward, request.form, point.site)
        module = self._added.new(holder.person, identity)
        there = self._there(holder, module)
        if there is not None and there.held.missing is None:
            return ModuleAdded(module=there.describe(self._anatomy), existed=True)
        return self._adding(session, there or module, arrays, processed, holder)

    def _there(self, holder: Holder, module: added.AddedModule) -> added.AddedModule | None:
        """Return the module of that site where it has the same files. UsageError where it is another."""
        own = module.identity
        there = self._added.find(holder.person, own.name, module.layer)
        if there is None:
            self._require_new(module, holder)
            return None
        if not there.is_that(own):
            raise UsageError(
                f"There is another module {there.site} already, of {there.identity.folder} at {there.identity.at}: "
                f"remove it first (%djinn_remove_module {there.site}), or choose another name."
            )
        return there

    def _adding(
        self,
        session: Session,
        module: added.AddedModule,
        arrays: dict[str, Array],
        processed: processed_values.Processed | None,
        holder: Holder,
    ) -> Steps[ModuleAdded]:
        """Put the tensors on the device of the point, one a step, then register the module."""
        own = module.identity
        yield from _draw(self._added, own.bytes_held, self._runtime, session)
        with self._added.given_back_on_error(own.bytes_held):
            tensors: dict[str, Tensor] = {}
            home = self._runtime.forward.home_of(self._runtime.resolve(module.at))
            for name, array in arrays.items():
                tensors[name] = checks.on_device(name, array, own.form, home)
                yield None
            arithmetic = processed_values.arithmetic_of(own.form, tensors, processed)
            if self._there(holder, module) not in (None, module):  # another was added while this one was read
                raise UsageError(f"Another module {module.site} was added meanwhile.")
            self._added.put(holder.person, module)
        module.held.make_present(arithmetic)
        return ModuleAdded(module=module.describe(self._anatomy))

    @handles(ask.ListAddedModules)
    def list_added_modules(self, request: ask.ListAddedModules, holder: Holder) -> AddedModules:
        return AddedModules(modules=tuple(one.describe(self._anatomy) for one in self._added.of(holder.person)))

    @handles(ask.RemoveModule)
    def remove_module(self, request: ask.RemoveModule, holder: Holder) -> Cleared:
        """Remove the modules of a name, unless a breakpoint, a rule or a watch is at one of their sites."""
        mine = self._added.of(holder.person)
        doomed = [one for one in mine if one.identity.name == request.name and request.layer in (None, one.layer)]
        if not doomed:
            named = ", ".join(str(one.site) for one in mine) or "none"
            raise UnknownSite(f"There is no added module {shown(_spell(request))}; there are {named}.")
        for module in doomed:
            self._require_unused(module.site, holder)
        for module in doomed:
            self._added.take_out(holder.person, module)
        return Cleared(count=len(doomed))

    def _require_new(self, module: added.AddedModule, holder: Holder) -> None:
        """Raise UsageError where a session is still stopped at another, removed module of that site."""
        for session in self._sessions.values():
            if base.person_of(session.name) != holder.person:
                continue
            before = (tap.added for tap in _taps_of(session) if tap.site.whole() == module.site)
            if any(one is not None and not module.is_that(one) for one in before):
                raise UsageError(
                    f"Session {in_quotes(session.name)} has stops or passes at another module {module.site}, which was "
                    "removed: choose another name, or make that session fresh."
                )

    def _require_unused(self, site: sites.Site, holder: Holder) -> None:
        for session in self._sessions.values():
            if base.person_of(session.name) == holder.person and site in _sites_of(session):
                raise UsageError(
                    f"{site} is used by session {in_quotes(session.name)}, which has a breakpoint, a rule or a watch "
                    "there: clear these first."
                )


def _arrays(request: ask.AddModule) -> dict[str, Array]:
    arrays = {one.name: one.values for one in request.tensors}
    if len(arrays) < len(request.tensors):
        raise UsageError("The module has two tensors of one name.")
    return arrays


def _sites_of(session: Session) -> Iterator[sites.Site]:
    """Yield the sites, without selectors, of a session's breakpoints, rules and watches."""
    for breakpoint in session.breakpoints.values():
        yield breakpoint.site.whole()
    for rule in session.rules.values():
        yield from (site.whole() for site in rule.sites)
    for watch in session.watches.values():
        yield watch.site.whole()


def _taps_of(session: Session) -> Iterator[Tap]:
    """Yield the taps of a session's stops and of the rules in its passes."""
    kept = (*(stop.frame for stop in session.history.stops), session.frame)
    frames = [one for one in (*kept, *(passes.entry for passes in session.pass_log.passes)) if one is not None]
    for frame in frames:
        yield from (override.tap for override in frame.overrides)
        if frame.tap is not None:
            yield frame.tap
    for passes in session.pass_log.passes:
        for rule in passes.rules:
            yield from rule.taps


def _spell(request: ask.RemoveModule) -> str:
    return request.name if request.layer is None else f"{request.name}.{request.layer}"


# Add adapters to the model, list and remove them, and set a session's adapter. Their tensors come in the request and
# are checked here.


class AdapterRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._runtime, self._adapters = sessions, runtime, runtime.modules.adapters

    @handles(ask.AddAdapter)
    def add_adapter(
        self, request: ask.AddAdapter, session: Session, holder: Holder
    ) -> Steps[AdapterAdded] | AdapterAdded:
        bounds.require_empty(session, "add an adapter", "engine.add_adapter")
        added.require_name(request.name)
        parts = added.fitted(self._runtime.forward, request.modules)
        identity = AdapterIdentity(name=request.name, folder=request.folder, digest=request.digest)
        there = self._adapters.same(holder.person, identity)
        if there is not None and there.missing is None:
            return AdapterAdded(adapter=self._described(there), existed=True)
        return self._adding(session, there or HeldAdapter(identity=identity), parts, holder)

    def _adding(
        self, session: Session, adapter: HeldAdapter, parts: list[added.Fitted], holder: Holder
    ) -> Steps[AdapterAdded]:
        """Put the matrices on the devices of their layers, a module a step, then register the adapter."""
        size = sum(part.nbytes for part in parts)
        yield from _draw(self._adapters, size, self._runtime, session)
        with self._adapters.given_back_on_error(size):
            products: list[LowRank] = []
            for part in parts:
                products.append(part.on_device())
                yield None
            if self._adapters.same(holder.person, adapter.identity) not in (None, adapter):
                raise UsageError(f"The adapter {adapter.name} was added meanwhile.")
            self._adapters.put(holder.person, adapter)
        adapter.make_present(products, size)
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
        """Choose the adapter of a session without tokens."""
        person = base.person_of(session.name)
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
        return added.described(adapter, self._computing_with(adapter))

    def _computing_with(self, adapter: HeldAdapter) -> tuple[str, ...]:
        return tuple(name for name, session in self._sessions.items() if session.adapter is adapter)


def _draw(table: added.AddedTensors, size: int, runtime: Runtime, session: Session) -> Pieces:
    """Draw bytes for a session's additions; its person's own sessions leave for them, and if that is not enough others.
    Raises OverQuota and SlabFull."""
    yield from runtime.space.set_aside(session, size, of_owner_budget=size)
    runtime.space.put_back()
    table.draw(size)
