"""The way in, for any thread: a request is posted to the engine's thread, or answered by a worker where it needs no
session (the model's modules, its tokenizer, the checkpoints on file).

Workers tokenize in threads, three lanes of them, so that a question about ten words never waits for a long text or for
a chat template. Rust tokenizers run there and release the interpreter's lock. Python ones would hold it, and so do Rust
ones when they hand over a long encoding (22 ms for a million tokens, on a 2-core Xeon): those texts go to a process.
Chat templates always run in one of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, Final, Literal

import msgspec
from msgspec import inspect

from djinn_jupyter.engine.loop.mailbox import Holder, LostHolder, PendingTokens, QueuedRequest, TextRead
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.model.loading.chat_template import ChatTemplate
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.model.loading.tokenizer_process import TokenizerProcess
from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.errors import DjinnError, EngineError, UsageError, from_code
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import BOUNDED_BY, MOST_TOKENS
from djinn_jupyter.wire.codec import as_read
from djinn_jupyter.wire.replies import Cleared, Failed, Modules, Reply, Tokenized
from djinn_jupyter.wire.requests import Run

AT_ONCE_CHARACTERS: Final = 2_000  # less than a millisecond with a Rust tokenizer; the engine's thread may
SHORT_CHARACTERS: Final = 50_000  # some 20 ms
THREAD_CHARACTERS: Final = 500_000  # longer texts go to the process
WAITING: Final = 64  # pieces of work a thread
WAITING_CHATS: Final = 4096  # the rows of a batch
Lane = Literal["short", "long", "chat"]


class TextWorker:
    """A thread that works in order. A daemon: work that does not end keeps no process alive."""

    def __init__(self, name: str, most: int) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._do_all, name=name, daemon=True)
        self._lock = threading.Lock()
        self._most, self._closed = most, False
        self.waiting = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Queue `work`. Raises EngineError where too much is queued already, and after `close`."""
        with self._lock:
            if self._closed:
                raise EngineError("The engine has been stopped.")
            if self.waiting >= self._most:
                raise EngineError(f"{self._most} texts are waiting to be tokenized already; ask again in a moment.")
            self.waiting += 1
            if not self._thread.is_alive():
                self._thread.start()
        self._work.put(work)

    def close(self) -> None:
        """Cancel queued work."""
        self._closed = True
        self._work.put(lambda: None)

    def _do_all(self) -> None:
        while not self._closed:
            self._work.get()()

    def done(self) -> None:
        with self._lock:
            self.waiting -= 1


class Tokenizing:
    """A text has at most `most` tokens. `wake` is called, on the worker's thread, when a piece of work is done and its
    outcome reported; `failed` makes the reply to an error, and logs unforeseen ones."""

    def __init__(
        self,
        texts: TokenText,
        process: TokenizerProcess | None,
        most: int,
        wake: Callable[[], None],
        failed: Callable[[Exception], Failed],
    ) -> None:
        self._texts, self._process, self.most, self._wake, self._failed = texts, process, most, wake, failed
        self._template = ChatTemplate(texts.tokenizer)
        waiting: dict[Lane, int] = {"short": WAITING, "long": WAITING, "chat": WAITING_CHATS}
        self._workers = {lane: TextWorker(f"djinn-{lane}-texts", number) for lane, number in waiting.items()}

    @property
    def busy(self) -> bool:
        return any(worker.waiting for worker in self._workers.values())

    def submit(self, work: Callable[[], None], size: int = 0, *, chat: bool = False) -> None:
        """Queue `work`, which reports its outcome itself and raises nothing; `size` in characters or tokens. Raises
        EngineError where too much is queued already."""
        worker = self._workers["chat" if chat else "short" if size <= SHORT_CHARACTERS else "long"]
        worker.submit(lambda: self._do(work, worker))

    def pending(self, request: Run, then: Callable[[], None]) -> PendingTokens | None:
        """Begin to tokenize a chat or a long prompt; `then` is called when it is done. Return None for a prompt short
        enough for the engine's thread. Raises the errors that are known beforehand."""
        text = prompt_text(request)
        if text is None or (request.extend and not text):
            return None
        if not request.chat and len(text) <= AT_ONCE_CHARACTERS:
            return None
        if not request.chat:  # a template may leave parts of it out
            self._texts.require_room(text, self.most)
        pending = PendingTokens()

        def work() -> None:
            if not pending.withdrawn:
                pending.outcome = self._outcome(text, request.chat)
                then()

        self.submit(work, len(text), chat=request.chat)
        return pending

    def encode(self, text: str, chat: bool) -> list[int]:
        """Encode as `TokenText.encode` does, in this thread or in the process; with `chat` as one user turn of the chat
        template. Call on a worker's thread, or for a short text that is no chat."""
        if chat:
            text = self._template.render(text)
        short = AT_ONCE_CHARACTERS if not self._texts.is_fast else THREAD_CHARACTERS
        if self._process is None or self._texts.tokenizer is None or len(text) <= short:
            return self._texts.encode(text, chat, self.most)
        self._texts.require_room(text, self.most)
        return self._process.encode(text, chat, self.most)

    def close(self) -> None:
        """Cancel queued work; a text in a process is interrupted, and one in a thread is abandoned."""
        for worker in self._workers.values():
            worker.close()
        self._template.close()
        if self._process is not None:
            self._process.close()

    def _outcome(self, text: str, chat: bool) -> list[int] | DjinnError:
        try:
            return self.encode(text, chat)
        except Exception as error:  # noqa: BLE001  the request's edge
            failed = self._failed(error)
            return from_code(failed.code, failed.message)

    def _do(self, work: Callable[[], None], worker: TextWorker) -> None:
        try:
            work()
        finally:
            worker.done()
            self._wake()


def prompt_text(request: Run) -> str | None:
    """Return the text to tokenize before the request can be worked on. Raises UsageError where it has tokens too."""
    if request.text is not None and request.tokens is not None:
        raise UsageError("A run takes text or token ids, not both.")
    return request.text


StatelessRequest = ask.ListModules | ask.Tokenize | ask.Detokenize | ask.ListCheckpoints | ask.DropCheckpoint


class Intake(BuiltOfParts):
    """`extents` are the longest lists by what limits them. A worker's thread answers while the engine's computes, so
    nothing here touches a session, a slab or the accounting."""

    def __init__(self, parts: EngineParts, tokenizing: Tokenizing, extents: Mapping[str, int]) -> None:
        super().__init__(parts)
        self._tokenizing, self._extents = tokenizing, extents
        self._tokenizer, self._description = parts.runtime.tokenizer, parts.runtime.description

    def submit(self, request: ask.Request, holder: Holder, reply: Callable[[Reply], None]) -> None:
        """Accept a request of this process, checked as if it had come over the wire."""
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
        """Accept a request from the wire."""
        try:
            require_extents(request, self._extents["positions"])
            if isinstance(request, StatelessRequest):
                self._answer_elsewhere(request, holder.person, reply)
                return
            tokens = None
            if isinstance(request, ask.Run):
                tokens = self._tokenizing.pending(
                    request, partial(self._mailbox.post, TextRead(session=request.session))
                )
        except Exception as error:  # noqa: BLE001  the request's edge
            reply(self._faults.reply_to(error))
        else:
            self._mailbox.post(
                QueuedRequest(request=request, holder=holder, reply=reply, tokens=tokens, known_as=known_as)
            )

    def lose_holder(self, holder: Holder) -> None:
        """Post that the holder has gone; its sessions stay, detached."""
        self._mailbox.post(LostHolder(holder=holder))

    def _answer_elsewhere(self, request: StatelessRequest, person: str | None, reply: Callable[[Reply], None]) -> None:
        """Let a worker make the reply to a person and pass it to `reply`. Raises errors that are known at once."""
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
        """Return the queued request, with a run's text as token ids. Raises the refusal of its text."""
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
                return Modules(modules=self._forward.anatomy.modules)
            case ask.Tokenize(text=text, chat=chat):
                return self._tokenized(self._tokenizing.encode(text, chat))
            case ask.Detokenize(tokens=tokens):
                _require_known(tokens, self._description.vocab_size)
                return self._tokenized(list(tokens))
            case ask.ListCheckpoints():
                return self._persistence.checkpoints.list(person)
            case ask.DropCheckpoint(name=name):
                self._persistence.checkpoints.drop(name)
                return Cleared(count=1)

    def _tokenized(self, tokens: list[int]) -> Tokenized:
        texts = tuple(self._tokenizer.text_of(token) for token in tokens)
        return Tokenized(tokens=tuple(tokens), texts=texts, text=self._tokenizer.decode(tokens))


def _require_known(tokens: tuple[int, ...], vocabulary: int) -> None:
    strange = next((token for token in tokens if token >= vocabulary), None)
    if strange is not None:
        raise UsageError(f"There is no token {strange}: this model has {vocabulary:,}.")


# The lengths of a request's lists, checked against the model before anything reads their entries. A list of positions
# is at most as long as the model's context; other lists are checked where they are used.


def most_tokens(context: int | None) -> int:
    """Return the most tokens that a text may have."""
    return MOST_TOKENS if context is None else min(context, MOST_TOKENS)


def extents(context: int | None) -> dict[str, int]:
    """Return the longest lists by what limits them. Methods add their own nouns."""
    return {"positions": most_tokens(context), "tokens": most_tokens(context)}


def require_extents(message: msgspec.Struct, positions: int) -> None:
    """Raise UsageError for a list of more positions than the model has."""
    for field in _of_positions(type(message)):
        value = getattr(message, field)
        if isinstance(value, msgspec.Struct):
            require_extents(value, positions)
        elif value is not None and len(value) > positions:
            raise UsageError(
                f"{field} has {len(value):,} entries and the model {positions:,} positions: name each position once."
            )


@cache
def _of_positions(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a struct that list positions, or hold structs that may."""
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    return tuple(field.name for field in shape.fields if any(_names_positions(one) for one in _parts(field.type)))


def _names_positions(shape: Any) -> bool:
    if isinstance(shape, inspect.StructType):
        return bool(_of_positions(shape.cls))
    return isinstance(shape, inspect.Metadata) and (shape.extra or {}).get(BOUNDED_BY) == "positions"


def _parts(shape: Any) -> Iterator[Any]:
    if isinstance(shape, inspect.UnionType):
        for one in shape.types:
            yield from _parts(one)
    else:
        yield shape
