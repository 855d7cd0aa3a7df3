"""What needs no session: the model's modules, its tokenizer, the checkpoints on file. Answered on a worker's thread,
while the engine's computes; so nothing here touches a session, a slab or the books."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from djinn_jupyter.engine.tokenizing import limit, prompt_text
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Checkpoints, Cleared, Modules, Reply, Tokenized

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine
    from djinn_jupyter.engine.mailbox import Letter

Enquiry = ask.ListModules | ask.Tokenize | ask.Detokenize | ask.ListCheckpoints | ask.DropCheckpoint
ENQUIRIES: Final = (ask.ListModules, ask.Tokenize, ask.Detokenize, ask.ListCheckpoints, ask.DropCheckpoint)


def answer_elsewhere(engine: Engine, request: Enquiry, reply: Callable[[Reply], None]) -> None:
    """Have the reply made by a worker, which gives it to `reply`. Raises what can be told at once."""
    context = engine.description.context_length
    size = 0
    match request:
        case ask.Tokenize(text=text, chat=chat):
            size = len(text)
            if not chat:
                engine.tokenizer.require_room(text, limit(context))
        case ask.Detokenize(tokens=tokens):
            size = len(tokens)
            if size > limit(context):
                raise UsageError(
                    f"{size:,} tokens are more than the {limit(context):,} positions of the model; ask for their text "
                    "in parts."
                )
    engine.tokenizing.submit(lambda: reply(_outcome(engine, request)), size)


def with_tokens(engine: Engine, letter: Letter) -> ask.Request:
    """The request of a letter, with a run's text as token ids. Raises what its text is refused for."""
    request = letter.request
    if not isinstance(request, ask.Run):
        return request
    text = prompt_text(request)
    if text is None:
        return request
    if not text and request.extend:
        tokens: list[int] = []
    elif letter.tokens is not None:
        tokens = letter.tokens.result()
    else:
        tokens = engine.tokenizing.encode(text, request.chat, engine.description.context_length)
    return msgspec.structs.replace(request, text=None, tokens=tuple(tokens))


def _outcome(engine: Engine, request: Enquiry) -> Reply:
    try:
        return _answer(engine, request)
    except Exception as error:  # noqa: BLE001  the request's edge
        return engine.faults.reply_to(error)


def _answer(engine: Engine, request: Enquiry) -> Reply:
    match request:
        case ask.ListModules():
            return Modules(modules=engine.anatomy.modules)
        case ask.Tokenize(text=text, chat=chat):
            return _tokenized(engine, engine.tokenizing.encode(text, chat, engine.description.context_length))
        case ask.Detokenize(tokens=tokens):
            _require_known(tokens, engine.description.vocab_size)
            return _tokenized(engine, list(tokens))
        case ask.ListCheckpoints():
            return Checkpoints(checkpoints=engine.keeping.checkpoints.list())
        case ask.DropCheckpoint(name=name):
            engine.keeping.checkpoints.drop(name)
            return Cleared(count=1)


def _require_known(tokens: tuple[int, ...], vocabulary: int) -> None:
    strange = next((token for token in tokens if token >= vocabulary), None)
    if strange is not None:
        raise UsageError(f"There is no token {strange}: this model has {vocabulary:,}.")


def _tokenized(engine: Engine, tokens: list[int]) -> Tokenized:
    texts = tuple(engine.text_of(token) for token in tokens)
    return Tokenized(tokens=tuple(tokens), texts=texts, text=engine.tokenizer.decode(tokens))
