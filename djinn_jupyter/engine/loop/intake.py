"""The way in, for any thread: a request is posted to the engine's thread, or answered by a worker where it needs no
session (the model's modules, its tokenizer, the checkpoints on file)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from djinn_jupyter.engine.loop.lines import require_extents
from djinn_jupyter.engine.loop.mailbox import Departure, Holder, Mailbox, QueuedRequest, TextRead
from djinn_jupyter.engine.loop.tokenizing import PendingTokens, Tokenizing, prompt_text
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.engine.store.checkpoint_files import KeptCheckpoints
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import as_read
from djinn_jupyter.wire.replies import Cleared, Modules, Reply, Tokenized

StatelessRequest = ask.ListModules | ask.Tokenize | ask.Detokenize | ask.ListCheckpoints | ask.DropCheckpoint


class Intake:
    """`extents` are how long lists may be by what bounds them. A worker's thread answers while the engine's computes,
    so nothing here touches a session, a slab or the accounting."""

    def __init__(
        self,
        mailbox: Mailbox,
        runtime: Runtime,
        tokenizing: Tokenizing,
        checkpoints: KeptCheckpoints,
        faults: Faults,
        extents: Mapping[str, int],
    ) -> None:
        self._mailbox, self._faults, self._extents = mailbox, faults, extents
        self._tokenizer, self._description = runtime.tokenizer, runtime.description
        self._modules = runtime.forward.anatomy.modules
        self._tokenizing, self._checkpoints = tokenizing, checkpoints

    def submit(self, request: ask.Request, holder: Holder, reply: Callable[[Reply], None]) -> None:
        """Take a request of this process, checked as if it had come over the wire."""
        try:
            request = as_read(request)
        except Exception as error:  # noqa: BLE001  the request's edge
            return reply(self._faults.reply_to(error))
        self.accept(request, holder, reply)

    def accept(
        self,
        request: ask.Request,
        holder: Holder,
        reply: Callable[[Reply], None],
        known_as: RequestId | None = None,
    ) -> None:
        """Take a request that was read off the wire."""
        try:
            require_extents(request, self._extents["positions"])
            if isinstance(request, StatelessRequest):
                self._answer_elsewhere(request, holder.person, reply)
                return
            tokens = self._begin_tokens(request) if isinstance(request, ask.Run) else None
        except Exception as error:  # noqa: BLE001  the request's edge
            reply(self._faults.reply_to(error))
        else:
            self._mailbox.post(
                QueuedRequest(request=request, holder=holder, reply=reply, tokens=tokens, known_as=known_as)
            )

    def depart(self, holder: Holder) -> None:
        """Post that the holder has gone; its sessions stay, detached."""
        self._mailbox.post(Departure(holder=holder))

    def _begin_tokens(self, request: ask.Run) -> PendingTokens | None:
        def post() -> None:
            self._mailbox.post(TextRead(session=request.session))

        return self._tokenizing.pending(request, post)

    def _answer_elsewhere(self, request: StatelessRequest, person: str | None, reply: Callable[[Reply], None]) -> None:
        """Have a worker make the reply to a person and pass it to `reply`. Raises errors that are known at once."""
        most, size, chat = self._tokenizing.most, 0, False
        match request:
            case ask.Tokenize(text=text, chat=chat):
                size = len(text)
                if not chat:
                    self._tokenizer.require_room(text, most)
            case ask.Detokenize(tokens=tokens):
                size = len(tokens)
                if size > most:
                    raise UsageError(
                        f"{size:,} tokens are more than the {most:,} positions of the model; ask for their text in "
                        "parts."
                    )
        self._tokenizing.submit(lambda: reply(self._outcome(request, person)), size, chat=chat)

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
            tokens = self._tokenizing.encode(text, request.chat)
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
                return self._tokenized(self._tokenizing.encode(text, chat))
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
