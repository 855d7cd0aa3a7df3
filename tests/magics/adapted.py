"""The part of the engine's double that keeps adapters, and which session computes with which."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import nouns, replies, requests
from djinn_jupyter.wire.modules import AdapterDescription


class Adapted:
    """Takes any matrices; computes nothing."""

    sessions: dict[str, nouns.SessionDescription]
    adapters: tuple[AdapterDescription, ...] = ()

    def _addadapter(self, request: requests.AddAdapter) -> replies.Reply:
        adapter = AdapterDescription(
            name=request.name,
            folder=request.folder,
            digest=request.digest,
            modules=len(request.modules),
            targets=tuple(sorted({one.path.rpartition(".")[2] for one in request.modules})),
            bytes_held=sum(one.down.nbytes + one.up.nbytes for one in request.modules),
        )
        self.adapters = (*self.adapters, adapter)
        return replies.AdapterAdded(adapter=adapter)

    def _listadapters(self, _: Any) -> replies.Reply:
        by_name = {one.adapter: name for name, one in self.sessions.items()}
        using = {one.name: (by_name[one.name],) if one.name in by_name else () for one in self.adapters}
        return replies.Adapters(
            adapters=tuple(msgspec.structs.replace(one, sessions=using[one.name]) for one in self.adapters)
        )

    def _removeadapter(self, request: requests.RemoveAdapter) -> replies.Reply:
        self._require_adapter(request.name)
        self.adapters = tuple(one for one in self.adapters if one.name != request.name)
        return replies.Cleared(count=1)

    def _setadapter(self, request: requests.SetAdapter) -> replies.Reply:
        if request.adapter is not None:
            self._require_adapter(request.adapter)
        found = msgspec.structs.replace(self.sessions[request.session], adapter=request.adapter)
        self.sessions[request.session] = found
        return replies.Described(session=found)

    def _require_adapter(self, name: str) -> None:
        if all(one.name != name for one in self.adapters):
            raise UsageError(f"There is no adapter {name}; there are none.")
