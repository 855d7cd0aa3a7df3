"""The verbs that methods add to engines and sessions, as verbs.pyi declares them: the core imports no method, so type
checkers and editors read them there as code, and this module as text."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any


class Verb:
    """A method of a class that is a function elsewhere: in a module, under the same name, with the object as its first
    parameter. The module is imported at the first use, and then the function replaces this object in the class."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, one: object, kind: type) -> Any:
        function = getattr(import_module(self.module), self._name)
        setattr(self._owner, self._name, function)
        return function.__get__(one, kind)


def _declared(kind: str) -> type:
    """Return a class with the verbs that verbs.pyi has in its class of this name."""
    _, _, lines = Path(__file__).with_suffix(".pyi").read_text("utf-8").partition(f"class {kind}:\n")
    verbs = re.findall(r"^    (\w+) = (\S+)\.\1$", lines.partition("\n\n")[0], re.MULTILINE)
    return type(kind, (), {"__module__": __name__} | {name: Verb(module) for name, module in verbs})


EngineVerbs, SessionVerbs = _declared("EngineVerbs"), _declared("SessionVerbs")
