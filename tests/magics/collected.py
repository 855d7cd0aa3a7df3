"""The engine double's collections: shards of zeros; its losses: a half for each token."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.methods.datasets.engine import shard
from djinn_jupyter.methods.datasets.engine import shard as shard_file
from djinn_jupyter.methods.datasets.request import Collect, Collected, CollectionProgressed, Score, Scored
from djinn_jupyter.wire import replies, requests
from djinn_jupyter.wire.greeting import Checked
from tests.magics.headed import made


class Collecting:
    def _checkcollect(self, _: Any) -> replies.Reply:
        return Checked()

    def _collect(self, request: Collect) -> replies.Reply:
        path = shard_file.shard_path(Path(request.folder), request.shard)
        note = {"format": 1, "model": {"name": "demo"}, "sites": list(request.sites), "positions": request.positions}
        note |= {"dtype": request.dtype, "shard": request.shard, "first": request.first}
        note |= {"mode": request.mode, "seed": request.seed}
        note |= {"computed": {"mode": request.mode, "rechecked": [0], "largest_difference": 2e-6, "notes": []}}
        note |= {"prompts": len(request.prompts), "last": request.last}
        rows = len(request.prompts) if request.positions else sum(map(len, request.prompts))
        tensors = {site: torch.zeros(rows, 4) for site in request.sites} | shard.tokens_of(request.prompts)
        stored = shard_file.write(path, tensors, note, threading.Event())
        told = CollectionProgressed(session=request.session, done=1, total=len(request.prompts))
        self.channel.publish(told)  # type: ignore[attr-defined]
        return Collected(
            shard=request.shard,
            path=str(path),
            prompts=len(request.prompts),
            bytes_stored=stored,
            existed=False,
            mode=request.mode,
            rechecked=(0,),
            largest_difference=2e-6,
        )

    def _score(self, request: Score) -> replies.Reply:
        tokens = tuple((1, 2, 3, 4, 5) if isinstance(line, str) else line for line in request.prompts)
        losses = torch.full((sum(map(len, tokens)) - len(tokens),), 0.5)
        return Scored(tokens=tokens, values=to_array(losses), made=made())

    def _tokenize(self, request: requests.Tokenize) -> replies.Reply:
        return replies.Tokenized(tokens=(1, 2, 3), texts=("a", " te", "xt"), text=request.text)
