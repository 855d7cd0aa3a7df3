"""A tokenizer in its own process: for tokenizers written in Python, and for texts so long that even the end of an
encoding would hold the GIL. The process reads the same tokenizer's files, so its tokens are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from djinn_jupyter.engine.model.loading.limited_process import LimitedProcess, Limits, serve
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.wire.base import Frozen

LIMITS: Final = Limits(seconds=120.0, memory=8 * 2**30)


class Files(Frozen, frozen=True):
    """The source of the tokenizer; the first message."""

    model: str
    source: str
    revision: str | None
    trust_remote_code: bool


class Text(Frozen, frozen=True):
    text: str
    rendered: bool
    most: int | None


class Encoded(Frozen, frozen=True, tag="Encoded"):
    tokens: tuple[int, ...]


class TokenizerProcess:
    """Handles one text at a time."""

    def __init__(self, config: EngineConfig, source: str) -> None:
        files = Files(
            model=config.model, source=source, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
        words = {"does": "tokenizes long texts", "done": "tokenized this one", "remedy": "shorten it"}
        self._process = LimitedProcess(__name__, files, LIMITS, **words)
        self.close = self._process.close

    def encode(self, text: str, rendered: bool, most: int | None) -> list[int]:
        """Encode as `TokenText.encode`. Raises its errors and those of `LimitedProcess.ask`."""
        asked = Text(text=text, rendered=rendered, most=most)
        return list(self._process.ask(asked, Encoded).tokens)


def _begin(files: Files) -> Callable[[Text], Encoded]:
    # with transformers, which only the process needs here
    from djinn_jupyter.engine.model.loading.load import load_tokenizer
    from djinn_jupyter.engine.model.loading.tokenizer import TokenText

    config = EngineConfig(model=files.model, revision=files.revision, trust_remote_code=files.trust_remote_code)
    texts = TokenText(load_tokenizer(config, files.source)[0])
    return lambda asked: Encoded(tokens=tuple(texts.encode(asked.text, asked.rendered, asked.most)))


if __name__ == "__main__":
    serve(Files, Text, _begin)
