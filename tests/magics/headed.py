"""The engine double's heads: two layers of three heads that all look at the token before."""

from __future__ import annotations

import msgspec
import torch

from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.methods.heads.request import HeadsRead, ReadHeads
from djinn_jupyter.wire import replies, requests
from djinn_jupyter.wire.looks import Circumstances
from djinn_jupyter.wire.provenance import Provenance


def made() -> Circumstances:
    """Return the circumstances of what the double says."""
    by = {field.name: "double" for field in msgspec.structs.fields(Provenance)} | {"threads": 1, "tensor_parallel": 1}
    return Circumstances(rules=(), attention=None, by=msgspec.convert(by, Provenance))


def heads_read(*, patterns: bool, layers: int = 2, heads: int = 3, length: int = 4) -> HeadsRead:
    scores = torch.linspace(0, 1, 3 * layers * heads, dtype=torch.float64).reshape(3, layers, heads)
    scores[1, -1, -1] = torch.nan
    pattern = torch.eye(length).roll(1, 0).expand(layers, heads, length, length).contiguous()
    return HeadsRead(
        layers=tuple(range(layers)),
        scores=to_array(scores),
        counted=(length - 1, 2, 2),
        texts=tuple(f" t{n}" for n in range(length)),
        patterns=to_array(pattern) if patterns else None,
        pooled=1,
        lines=(tuple(range(length)),),
        made=made(),
    )


class Headed:
    def _readheads(self, request: ReadHeads) -> replies.Reply:
        read = heads_read(patterns=request.patterns)
        return msgspec.structs.replace(read, lines=read.lines * len(request.lines))

    def _readweight(self, request: requests.ReadWeight) -> replies.Reply:
        rows = len(request.rows) if request.rows is not None else 3
        return replies.WeightRead(name=request.name, values=to_array(torch.ones(rows, 2)))
