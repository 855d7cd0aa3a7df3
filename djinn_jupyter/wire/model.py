"""The modules of a model, and its tokenizer."""

from __future__ import annotations

from djinn_jupyter.wire.bounds import Tokens
from djinn_jupyter.wire.limits import Text
from djinn_jupyter.wire.nouns import ModuleDescription
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase


class Modules(ReplyBase):
    modules: tuple[ModuleDescription, ...]


class Tokenized(ReplyBase):
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    text: str


class ListModules(RequestBase[Modules], browser="asks", resent="anew"): ...


class Tokenize(RequestBase[Tokenized], browser="asks", resent="anew"):
    text: Text
    chat: bool = False


class Detokenize(RequestBase[Tokenized], browser="asks", resent="anew"):
    tokens: Tokens
