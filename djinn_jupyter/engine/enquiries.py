"""What needs no session: the model's modules, its tokenizer, the checkpoints on file. Answered on the asker's thread,
while the engine's computes; so nothing here touches a session, a slab or the books."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from djinn_jupyter.engine.model.tokenizer import TokenText
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Checkpoints, Cleared, Modules, Reply, Tokenized

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


def answer(engine: Engine, request: ask.Request) -> Reply | None:
    """The reply, or None where the request is the engine's thread's business."""
    match request:
        case ask.ListModules():
            return Modules(modules=engine.anatomy.modules)
        case ask.Tokenize(text=text, chat=chat):
            return _tokenized(engine.tokenizer, engine.tokenizer.encode(text, chat=chat))
        case ask.Detokenize(tokens=tokens):
            return _tokenized(engine.tokenizer, list(tokens))
        case ask.ListCheckpoints():
            return Checkpoints(checkpoints=engine.keeping.checkpoints.list())
        case ask.DropCheckpoint(name=name):
            engine.keeping.checkpoints.drop(name)
            return Cleared(count=1)
    return None


def with_tokens(tokenizer: TokenText, request: ask.Request) -> ask.Request:
    """The same request, with a run's text as token ids. Raises UsageError where it has both."""
    if not isinstance(request, ask.Run) or request.text is None:
        return request
    if request.tokens is not None:
        raise UsageError("A run takes text or token ids, not both.")
    if not request.text and request.extend:
        return msgspec.structs.replace(request, text=None, tokens=())
    tokens = tokenizer.encode(request.text, chat=request.chat)
    return msgspec.structs.replace(request, text=None, tokens=tuple(tokens))


def _tokenized(tokenizer: TokenText, tokens: list[int]) -> Tokenized:
    texts = tuple(tokenizer.text_of(token) for token in tokens)
    return Tokenized(tokens=tuple(tokens), texts=texts, text=tokenizer.decode(tokens))
