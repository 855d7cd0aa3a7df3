"""The part of the engine's double that keeps added modules."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire import replies, requests
from djinn_jupyter.wire.modules import AddedModuleDescription
from djinn_jupyter.wire.sites import parse_site


class Added:
    """Takes any tensors; computes nothing."""

    modules_added: tuple[AddedModuleDescription, ...] = ()

    def _addmodule(self, request: requests.AddModule) -> replies.Reply:
        widths = next(one.values.shape for one in request.tensors if one.name == "W_enc")
        at = str(parse_site(request.at))  # which the files may spell as TransformerLens does
        module = AddedModuleDescription(
            name=request.name,
            site=f"{request.name}.{at.rpartition('.')[2]}",
            at=at,
            kind=request.form.kind,
            activation=request.form.activation,
            inputs=widths[0],
            features=widths[1],
            folder=request.folder,
            digest=request.digest,
            bytes_held=sum(one.values.nbytes for one in request.tensors),
            error_term=request.error_term,
        )
        self.modules_added = (*self.modules_added, module)
        return replies.ModuleAdded(module=module)

    def _listaddedmodules(self, _: Any) -> replies.Reply:
        return replies.AddedModules(modules=self.modules_added)

    def _removemodule(self, request: requests.RemoveModule) -> replies.Reply:
        kept = tuple(one for one in self.modules_added if one.name != request.name)
        count = len(self.modules_added) - len(kept)
        if not count:
            raise UnknownSite(f"There is no added module {request.name}; there are none.")
        self.modules_added = kept
        return replies.Cleared(count=count)
