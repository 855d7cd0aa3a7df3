"""Check the arguments of public verbs by their annotations, before any work begins. An annotation of `object` admits
anything; ranges of numbers are the verb's to check."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from djinn_jupyter.errors import UsageError

Call = TypeVar("Call", bound=Callable[..., Any])  # one name for both: type checkers then see through it at once
SHOWN: Final = 60
PLAIN: Final = (bool, int, float, complex, str, bytes, list, tuple, dict, set, range, slice, NoneType)
WORDS: Final[dict[Any, str]] = {str: "a text", int: "a whole number", float: "a number", bool: "True or False"}


def typed(function: Call) -> Call:
    """Make a function check its arguments and convert them to their annotations: a numpy integer to int, an array of
    numbers to a tuple. UsageError for an unknown or missing argument, or a value that its annotation does not admit."""
    signature = inspect.signature(function)
    hints: dict[str, Any] = {}

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not hints:
            hints.update(get_type_hints(function))
        given = _bound(function.__name__, signature, args, kwargs)
        for name, value in given.arguments.items():
            parameter = signature.parameters[name]
            if name in hints and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                given.arguments[name] = _admitted(name, value, hints[name])
        return function(*given.args, **given.kwargs)

    return cast(Call, checked)


def _bound(
    name: str, signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]
) -> inspect.BoundArguments:
    """Return the arguments by name. Raises UsageError, with the known names, where these do not fit."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        passed = (one for one in signature.parameters.values() if one.kind != one.POSITIONAL_ONLY)
        known = [one.name for one in passed if one.name != "self"]
        strange = [given for given in kwargs if given not in known]
        said = f"takes no argument {strange[0]!r}" if strange else f"cannot be called so ({error})"
        raise UsageError(f"{name} {said}; its arguments are {', '.join(known)}.") from None


def shown(value: object) -> str:
    """Spell a given value on one short line; for classes other than Python's own, the name of the class."""
    if not isinstance(value, PLAIN):
        return f"a {type(value).__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def chosen_tokens(tokens: object) -> tuple[str | int, ...]:
    """Return the tokens to report besides the most probable ones. UsageError unless they are a list of tokens."""
    return cast(tuple[str | int, ...], _admitted("tokens", tokens, Iterable[str | int]))


def checked_seed(seed: int) -> int:
    """Return a seed by which a request can draw rows. Raises UsageError for another number."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is a whole number from 0 to 2**63 - 1, not {shown(seed)}.")
    return seed


def _admitted(name: str, value: object, kind: Any) -> Any:
    with suppress(_Other):
        return _any_of(kind, value)
    expected = " or ".join(_words(one) for one in _kinds(kind) if one is not NoneType)
    raise UsageError(f"{name} is {expected}, not {shown(value)}.")


class _Other(Exception):
    """The value has another kind."""


def _kinds(kind: Any) -> tuple[Any, ...]:
    """Return the kinds of a union; `object` for a union that admits slices, because positions check themselves."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return (object,) if slice in kinds else kinds


def _as(kind: Any, value: Any) -> Any:
    if kind in (object, Any):
        return value
    origin = get_origin(kind)
    if origin is Literal:
        return _if(isinstance(value, str) and value in get_args(kind), value)
    if origin in (Sequence, Iterable):
        return _several(get_args(kind)[0], value)
    if origin is Mapping:
        key, one = get_args(kind)
        _if(isinstance(value, Mapping), value)
        return {_as(key, name): _as(one, each) for name, each in value.items()}
    if origin is Callable:
        return _if(callable(value), value)
    if kind is int:
        return _whole(value)
    if kind is float:
        return _number(value)
    return _if(isinstance(value, kind), value)


def _several(kind: Any, value: Any) -> tuple[Any, ...]:
    _if(not isinstance(value, str | bytes | dict), value)
    try:
        found = tuple(value)
    except TypeError:
        raise _Other from None
    return tuple(_any_of(kind, one) for one in found)


def _any_of(kind: Any, value: Any) -> Any:
    """Return a value converted to the first kind of a union that admits it."""
    for one in _kinds(kind):
        with suppress(_Other):
            return _as(one, value)
    raise _Other


def _whole(value: Any) -> int:
    try:
        return operator.index(_if(not isinstance(value, bool), value))
    except TypeError:
        raise _Other from None


def _number(value: Any) -> float:
    _if(isinstance(value, numbers.Real) and not isinstance(value, bool), value)
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _if(holds: bool, value: Any) -> Any:
    if not holds:
        raise _Other
    return value


def _words(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if origin in (Sequence, Iterable):
        several = (f"{_words(one).removeprefix('a ')}s" for one in _kinds(get_args(kind)[0]))
        return f"a list of {' or '.join(several)}"
    if origin is Mapping:
        return f"a dict of {WORDS[get_args(kind)[1]].removeprefix('a ')}s"
    if origin is Callable:
        return "a function"
    return WORDS.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def given_path(given: str | Path, noun: str) -> Path:
    """Return the full path of a file or folder, which need not exist. Raises UsageError for no text, a name that no
    file system takes, or the home of an unknown user. `noun` names the argument in errors."""
    try:
        if not str(given).strip() or "\0" in str(given):
            raise ValueError
        path = Path(given).expanduser().absolute()
        os.fsencode(path).decode()
        path.exists()
    except OSError as error:
        raise UsageError(
            f"{shown(str(given))} names no {noun} here: {(error.strerror or str(error)).lower()}."
        ) from None
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{shown(str(given))} names no {noun}.") from None
    return path
