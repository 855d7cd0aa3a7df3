"""A tokenizer in its own process: for tokenizers written in Python, and for texts so long that even the end of an
encoding would hold the interpreter's lock. The process reads the same tokenizer's files, so its tokens are the same.

    engine  --[8 bytes of length][Files, then Text...]-->  stdin of the process
    engine  <--[8 bytes of length][Encoded or Refused]--   its stdout
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import IO, Final

import msgspec

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.errors import DjinnError, EngineError, from_code
from djinn_jupyter.wire.frozen import Frozen

_LENGTH: Final = 8  # bytes
_COMMAND: Final = (sys.executable, "-P", "-m", "djinn_jupyter.engine.model.loading.tokenizer_process")


class Files(Frozen, frozen=True):
    """The source that the tokenizer is read from; the first message."""

    model: str
    source: str
    revision: str | None
    trust_remote_code: bool


class Text(Frozen, frozen=True):
    text: str
    chat: bool
    most: int | None


class Encoded(Frozen, frozen=True, tag="Encoded"):
    tokens: tuple[int, ...]


class Refused(Frozen, frozen=True, tag="Refused"):
    code: str
    message: str


class TokenizerProcess:
    """Started by the first text, ended by `close` or with the engine. Handles one text at a time."""

    def __init__(self, config: EngineConfig, source: str) -> None:
        self._files = Files(
            model=config.model,
            source=source,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def encode(self, text: str, chat: bool, most: int | None) -> list[int]:
        """Encode as `TokenText.encode`. EngineError where the process ends before it has answered."""
        with self._turn:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                _write(process.stdin, Text(text=text, chat=chat, most=most))
                answer = msgspec.msgpack.decode(_read(process.stdout), type=Encoded | Refused)
            except (OSError, EOFError):
                raise self._ended(process) from None
        if isinstance(answer, Refused):
            raise from_code(answer.code, answer.message)
        return list(answer.tokens)

    def close(self) -> None:
        """End the process, even in the midst of a text. May be called from any thread."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None and not self._closed:
            self._process = process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
            assert process.stdin is not None
            _write(process.stdin, self._files)
        if self._process is None or self._closed:
            raise EngineError("The engine has been stopped.")
        return self._process

    def _ended(self, process: subprocess.Popen[bytes]) -> EngineError:
        self._process = None
        code = process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return EngineError(
            f"The process that tokenizes long texts ended ({how}) before it had tokenized this one; ask again, and "
            "%djinn_log says more."
        )


def _write(pipe: IO[bytes], message: Frozen) -> None:
    body = msgspec.msgpack.encode(message)
    pipe.write(len(body).to_bytes(_LENGTH, "big") + body)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    length = int.from_bytes(_exactly(pipe, _LENGTH), "big")
    return _exactly(pipe, length)


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    content = pipe.read(count)
    if len(content) < count:
        raise EOFError
    return content


def _serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer texts until the engine closes the pipe or ends."""
    from djinn_jupyter.engine.model.loading.load import (
        load_tokenizer,  # with transformers, which only the process needs here
    )
    from djinn_jupyter.engine.model.loading.tokenizer import TokenText

    files = msgspec.msgpack.decode(_read(questions), type=Files)
    config = EngineConfig(model=files.model, revision=files.revision, trust_remote_code=files.trust_remote_code)
    tokenizer, _ = load_tokenizer(config, files.source)
    texts = TokenText(tokenizer)
    while True:
        try:
            asked = msgspec.msgpack.decode(_read(questions), type=Text)
        except EOFError:
            return
        try:
            answer: Frozen = Encoded(tokens=tuple(texts.encode(asked.text, asked.chat, asked.most)))
        except DjinnError as error:
            answer = Refused(code=error.code, message=str(error))
        _write(answers, answer)


def main() -> None:
    """Serve stdin. Libraries' prints go to the engine's log: the answers have a descriptor of their own."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
