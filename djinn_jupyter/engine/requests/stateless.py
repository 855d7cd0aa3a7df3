"""Requests that need no session: the model's modules, its tokenizer, the checkpoints on file. Answered on a worker's
thread while the engine's computes; so nothing here touches a session, a slab or the accounting."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from djinn_jupyter.engine.persistence.checkpoint_files import KeptCheckpoints
from djinn_jupyter.engine.scheduling.mailbox import QueuedRequest
from djinn_jupyter.engine.scheduling.tokenizing import PendingTokens, Tokenizing, limit, prompt_text
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Cleared, Modules, Reply, Tokenized

StatelessRequest = ask.ListModules | ask.Tokenize | ask.Detokenize | ask.ListCheckpoints | ask.DropCheckpoint


class StatelessRequests:
    """Also tokenizes prompts, on a worker's thread where they are long."""

    def __init__(self, runtime: Runtime, tokenizing: Tokenizing, checkpoints: KeptCheckpoints, faults: Faults) -> None:
        self._tokenizer, self._description = runtime.tokenizer, runtime.description
        self._modules = runtime.forward.anatomy.modules
        self._tokenizing, self._checkpoints, self._faults = tokenizing, checkpoints, faults

    def answer_elsewhere(self, request: StatelessRequest, person: str | None, reply: Callable[[Reply], None]) -> None:
        """Have a worker make the reply to a person and pass it to `reply`. Raises errors that are known at once."""
        context = self._description.context_length
        size, chat = 0, False
        match request:
            case ask.Tokenize(text=text, chat=chat):
                size = len(text)
                if not chat:
                    self._tokenizer.require_room(text, limit(context))
            case ask.Detokenize(tokens=tokens):
                size = len(tokens)
                if size > limit(context):
                    raise UsageError(
                        f"{size:,} tokens are more than the {limit(context):,} positions of the model; ask for their "
                        "text in parts."
                    )
        self._tokenizing.submit(lambda: reply(self._outcome(request, person)), size, chat=chat)

    def begin_tokens(self, request: ask.Run, then: Callable[[], None]) -> PendingTokens | None:
        """Begin to tokenize a long prompt; None for a short one. Raises the error for which its text is refused."""
        return self._tokenizing.pending(request, self._description.context_length, then)

    def with_tokens(self, queued: QueuedRequest) -> ask.Request:
        """Return the queued request, with a run's text as token ids. Raises the error for which its text is refused."""
        request = queued.request
        if not isinstance(request, ask.Run):
            return request
        text = prompt_text(request)
        if text is None:
            return request
        if not text and request.extend:
            tokens: list[int] = []
        elif queued.tokens is not None:
            tokens = queued.tokens.result()
        else:
            tokens = self._tokenizing.encode(text, request.chat, self._description.context_length)
        return msgspec.structs.replace(request, text=None, tokens=tuple(tokens))

    def _outcome(self, request: StatelessRequest, person: str | None) -> Reply:
        try:
            return self._answer(request, person)
        except Exception as error:  # noqa: BLE001  the request's edge
            return self._faults.reply_to(error)

    def _answer(self, request: StatelessRequest, person: str | None) -> Reply:
        match request:
            case ask.ListModules():
                return Modules(modules=self._modules)
            case ask.Tokenize(text=text, chat=chat):
                return self._tokenized(self._tokenizing.encode(text, chat, self._description.context_length))
            case ask.Detokenize(tokens=tokens):
                _require_known(tokens, self._description.vocab_size)
                return self._tokenized(list(tokens))
            case ask.ListCheckpoints():
                return self._checkpoints.list(person)
            case ask.DropCheckpoint(name=name):
                self._checkpoints.drop(name)
                return Cleared(count=1)

    def _tokenized(self, tokens: list[int]) -> Tokenized:
        texts = tuple(self._tokenizer.text_of(token) for token in tokens)
        return Tokenized(tokens=tuple(tokens), texts=texts, text=self._tokenizer.decode(tokens))


def _require_known(tokens: tuple[int, ...], vocabulary: int) -> None:
    strange = next((token for token in tokens if token >= vocabulary), None)
    if strange is not None:
        raise UsageError(f"There is no token {strange}: this model has {vocabulary:,}.")
