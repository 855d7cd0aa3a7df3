"""The names of vLLM's public interface that could be for stopping inside a model, as the original's parsers read them:
evidence to look up, by which nothing is decided."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any

_STOP = r"(break|pause|stop|halt)"
WANTED = {  # whether a method or a parameter, and how its name would read
    "breakpoint_layer_parameter": ("parameters", rf"{_STOP}.*layer|layer.*{_STOP}"),
    "pause_at_layer_method": ("methods", rf"{_STOP}.*layer|layer.*{_STOP}"),
    "resume_from_checkpoint_method": ("methods", r"(resume|restore|continue).*(checkpoint|layer|state)"),
    "get_activation_at_layer_method": ("methods", r"activation|(get|return|extract).*hidden"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Public names, each after its class: `LLM.sleep`. Parameters are those of methods, constructors and option
    classes."""

    methods: tuple[str, ...]
    parameters: tuple[str, ...]

    def evidence(self) -> dict[str, list[str]]:
        """Return for each test the names that match it."""
        return {
            test: [name for name in getattr(self, kind) if re.search(pattern, name.partition(".")[2])]
            for test, (kind, pattern) in WANTED.items()
        }


def answers_of(found: Interface) -> dict[str, bool]:
    return {test: bool(names) for test, names in found.evidence().items()}


def found_in(vllm: Any) -> Interface:
    """Return an installed vLLM's interface: its offline class, its asynchronous engine, sampling and engine options."""
    classes = [vllm.LLM, *_there("vllm.v1.engine.async_llm", "AsyncLLM")]
    options = [vllm.SamplingParams, *_there("vllm.engine.arg_utils", "EngineArgs")]
    methods = tuple(f"{owner.__name__}.{name}" for owner in classes for name in _public(owner))
    taken = [f"{owner.__name__}.{name}" for owner in classes for name in _taken_by(owner)]
    given = [f"{owner.__name__}.{name}" for owner in options for name in fields_of(owner)]
    return Interface(methods=methods, parameters=tuple(dict.fromkeys([*taken, *given])))


def _there(module: str, name: str) -> Iterator[Any]:
    """Yield the class where this version has it."""
    try:
        yield getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return


def _public(owner: Any) -> list[str]:
    return [name for name, _ in inspect.getmembers(owner, callable) if not name.startswith("_")]


def _taken_by(owner: Any) -> Iterable[str]:
    """Yield the parameters of the constructor and of the public methods."""
    for name in ("__init__", *_public(owner)):
        try:
            yield from (given for given in inspect.signature(getattr(owner, name)).parameters if given != "self")
        except (TypeError, ValueError):
            continue  # written in another language


def fields_of(owner: Any) -> list[str]:
    if is_dataclass(owner):
        return [field.name for field in fields(owner)]
    return [name for name in inspect.signature(owner).parameters if name != "self"]
