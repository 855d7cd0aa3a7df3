"""The verbs that methods add to engines and sessions: only their names and modules, as text, because the core imports
no method. Their types are in verbs.pyi, which only type checkers and editors read."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Verb:
    """A method of a class that is a function elsewhere: in a module below `djinn_jupyter.methods`, under the same name,
    with the object as its first parameter. The module is imported at the first use, and then the function replaces this
    object in the class."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, one: object, kind: type) -> Any:
        function = getattr(import_module(f"djinn_jupyter.methods.{self.module}"), self._name)
        setattr(self._owner, self._name, function)
        return function.__get__(one, kind)


class EngineVerbs:
    """The verbs of an engine that methods add."""

    collect = Verb("datasets.api.collecting")
    loss = Verb("datasets.api.scoring")
    head_scores = Verb("heads.api")


class SessionVerbs:
    """The verbs of a session that methods add."""

    attribute = Verb("direct.api")
    loss = Verb("datasets.api.session_verbs")
    all_logits = Verb("datasets.api.session_verbs")
    patterns = Verb("heads.api")
