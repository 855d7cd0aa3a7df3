"""Work that neither the polling thread nor the engine's may do: long texts to tokens, tokens to text, lists of files.

Three worker threads: for short work, for long work and for chats, so that a question about ten words never waits for a
long text or for a chat template. Rust tokenizers run there and release the interpreter's lock. Python ones would hold
it, and so do Rust ones when they hand over a long encoding (22 ms for a million tokens, on a 2-core Xeon): those texts
go to a process. Chat templates always run in one of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Literal

from djinn_jupyter.engine.model.loading.chat_template import ChatTemplate
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.model.loading.tokenizer_process import TokenizerProcess
from djinn_jupyter.errors import DjinnError, EngineError, UsageError, from_code
from djinn_jupyter.wire.replies import Failed
from djinn_jupyter.wire.request_base import MOST_TOKENS
from djinn_jupyter.wire.requests import Run

AT_ONCE_CHARACTERS: Final = 2_000  # less than a millisecond with a Rust tokenizer; the engine's thread may
SHORT_CHARACTERS: Final = 50_000  # some 20 ms
THREAD_CHARACTERS: Final = 500_000  # longer texts go to the process
WAITING: Final = 64  # pieces of work a thread
WAITING_CHATS: Final = 4096  # the rows of a batch
Lane = Literal["short", "long", "chat"]


class PendingTokens:
    """The tokens of one prompt, once made: a worker sets `outcome`, the engine's thread reads it. `withdrawn`: no
    request waits for them."""

    __slots__ = ("outcome", "withdrawn")

    def __init__(self) -> None:
        self.outcome: list[int] | DjinnError | None = None
        self.withdrawn = False

    def result(self) -> list[int]:
        assert self.outcome is not None
        if isinstance(self.outcome, DjinnError):
            raise self.outcome
        return self.outcome


class TextWorker:
    """A thread that does pieces of work in order. A daemon: work that does not end keeps no process alive."""

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
    """A text has `most` tokens. `wake` is called, on the worker's thread, when a piece of work is done and its outcome
    told; `failed` makes the reply to an error, and logs unforeseen ones."""

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
        """Queue `work`, which tells its outcome itself and raises nothing; `size` in characters or tokens. Raises
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
        """Cancel queued work; a text in a process is broken off, and one in a thread is left behind."""
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


def limit(context: int | None) -> int:
    """Return the most tokens that a text may have."""
    return MOST_TOKENS if context is None else min(context, MOST_TOKENS)


def prompt_text(request: Run) -> str | None:
    """Return the text to tokenize before the request can be worked on. Raises UsageError where it has tokens too."""
    if request.text is not None and request.tokens is not None:
        raise UsageError("A run takes text or token ids, not both.")
    return request.text
