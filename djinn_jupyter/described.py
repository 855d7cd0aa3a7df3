"""Settings described once, as the fields of a TypedDict. The flags of a command line, Python's signature and help, and
the checks of ranges are made from the descriptions.

    class Given(TypedDict, total=False):
        threads: Annotated[int | None, Description("threads for computing", least=1)]

Knows no setting by name. `%load_ext` reads this file: the standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import typing
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar

from djinn_jupyter.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
AnyDataclass = TypeVar("AnyDataclass")


_METAVARS: Final[dict[object, str]] = {int: "N", float: "S"}
_KINDS: Final = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}


class AllowedValues(NamedTuple):
    """The values that a setting allows: in words, and as a test."""

    words: str
    keeps: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a setting: the words of its help; its least value, or another rule; its former names."""

    help: str
    _: KW_ONLY
    metavar: str | None = None
    least: float | None = None
    rule: AllowedValues | None = None
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A described field. `kinds` are the types that its value may have, without None."""

    name: str
    kinds: frozenset[Any]
    hint: Any
    described: Description

    @property
    def is_amount(self) -> bool:
        """True for an amount of memory, which is given as a number of bytes or as a text."""
        return self.kinds == {int, str}

    @property
    def in_json(self) -> Any:
        """The type of its value in a configuration, where an object of Python is named by a text."""
        return (str if object in self.kinds else self.hint) | None

    def plain(self, value: Any) -> Any:
        """Return a number of another library, such as numpy, as Python's own."""
        if self.kinds == {float} and isinstance(value, numbers.Real):
            return float(value)
        return int(value) if int in self.kinds and isinstance(value, numbers.Integral) else value

    def require_kind(self, value: Any) -> None:
        """Raise UsageError for a value of another type, and for a whole number that no message can carry."""
        if object not in self.kinds and not isinstance(value, tuple(self.kinds)):
            words = " or ".join(word for kind, word in _KINDS.items() if kind in self.kinds)
            raise UsageError(f"{self.name} is {words}; it cannot be {_on_one_line(value)}.")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise UsageError(f"{self.name} has at most 64 bits; it cannot be {_on_one_line(value)}.")

    @property
    def flags(self) -> tuple[str, ...]:
        """The names on a command line, former ones first: the last is the one that messages use."""
        return tuple(flag_of(name) for name in (*self.described.formerly, self.name))

    def argument(self, amount: Callable[[str], Any] | None) -> dict[str, Any]:
        """Return how argparse reads it. A setting that is not given is None."""
        made: dict[str, Any] = {"dest": self.name, "default": None, "help": self.described.help}
        if self.kinds == {bool}:
            return {**made, "action": "store_true"}
        number = next((kind for kind in (int, float) if self.kinds == {kind}), None)
        read = amount if self.is_amount else number
        metavar = self.described.metavar or _METAVARS.get(number) or ("AMOUNT" if self.is_amount else None)
        return {**made, **({"type": read} if read else {}), **({"metavar": metavar} if metavar else {})}


@functools.cache
def settings_of(described: type) -> tuple[Setting, ...]:
    """Return the described fields of a TypedDict, in its order."""
    made = []
    for name, hint in typing.get_type_hints(described, include_extras=True).items():
        kind, said = typing.get_args(hint)
        kinds = frozenset(typing.get_args(kind) or (kind,)) - {NoneType}
        made.append(Setting(name=name, kinds=kinds, hint=kind, described=said))
    return tuple(made)


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_flags(
    add: Callable[..., Any], described: type, *, amount: Callable[[str], Any] | None = None
) -> tuple[Any, ...]:
    """Add a flag for each setting by `add`, which takes what argparse takes; return its results. Amounts of memory
    are read by `amount`, or left as texts."""
    return tuple(add(*one.flags, **one.argument(amount)) for one in settings_of(described))


def words_of(*values: Any) -> list[str]:
    """Return the flags that give the fields of dataclasses; open fields are left out."""
    return [word for value in values for word in flags_of(_fields_of(value))]


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def flags_of(given: Mapping[str, Any]) -> list[str]:
    """Return the flags that give settings by their names; those that are open are left out."""
    named = {name: value for name, value in given.items() if value is not None and value is not False}
    return [flag_of(name) if value is True else f"{flag_of(name)}={value}" for name, value in named.items()]


def chosen(described: type, parsed: object) -> dict[str, Any]:
    """Return the settings that a command line gave, of all that it parsed."""
    found = ((one.name, getattr(parsed, one.name, None)) for one in settings_of(described))
    return {name: value for name, value in found if value is not None}


def given_by_name(described: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings under their present names, without those that are None. UsageError for unknown ones and for
    values of another type."""
    names = {name: one for one in settings_of(described) for name in (*one.described.formerly, one.name)}
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1, cutoff=0.6)
            raise UsageError(f"There is no option {name}{f'; did you mean {near[0]}?' if near else '.'}")
    found = {names[name]: names[name].plain(value) for name, value in given.items() if value is not None}
    for setting, value in found.items():
        setting.require_kind(value)
    return {setting.name: value for setting, value in found.items()}


def check_least(described: type, given: Mapping[str, Any]) -> None:
    """Raise UsageError where a setting is below its least value, or breaks its rule; a NaN is not at least anything."""
    for one in settings_of(described):
        least, value = one.described.least, given.get(one.name)
        if least is not None and value is not None and not value >= least:
            raise UsageError(f"{one.name} is at least {least}; it cannot be {value}.")
        _require_kept(one, value)


def check_rules(described: type, values: object) -> None:
    """Raise UsageError where an attribute breaks the rule of its setting, or is of a kind for which that cannot be
    asked."""
    for one in settings_of(described):
        _require_kept(one, getattr(values, one.name))


def _require_kept(setting: Setting, asked: Any) -> None:
    rule = setting.described.rule
    if rule is not None and asked is not None and not _keeps(rule, asked):
        raise UsageError(f"{rule.words}; it cannot be {_on_one_line(asked)}.")


def _keeps(rule: AllowedValues, asked: Any) -> bool:
    try:
        return rule.keeps(asked)
    except TypeError:
        return False


def part_of(kind: type[AnyDataclass], given: Mapping[str, Any], **more: Any) -> AnyDataclass:
    """Return a dataclass made of those settings that are its fields; the others have its defaults."""
    names = {field.name for field in dataclasses.fields(typing.cast(Any, kind))}
    return kind(**{name: value for name, value in given.items() if name in names}, **more)


def takes(described: type) -> Callable[[Function], Function]:
    """Give a function that takes the settings as `**settings` a signature and a help with each of them."""

    def spell_out(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if one.kinds == {bool} else None,
                annotation=one.hint,
            )
            for one in settings_of(described)
        ]
        told = "\n".join(f"    {one.name}: {one.described.help}" for one in settings_of(described))
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *more])
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{told}\n"
        return function

    return spell_out


def refuses(described: type, reason: str) -> Callable[[Function], Function]:
    """Have a function raise UsageError, with the reason, for each of the settings that is no argument of its own."""

    def refuse(function: Function) -> Function:
        own = inspect.signature(function).parameters
        names = {name for one in settings_of(described) for name in (*one.described.formerly, one.name)} - own.keys()

        @functools.wraps(function)
        def called(*args: Any, **given: Any) -> Any:
            strange = [name for name in given if name in names]
            if strange:
                raise UsageError(f"{' and '.join(strange)} {'are' if strange[1:] else 'is'} of the sampling: {reason}")
            return function(*args, **given)

        return typing.cast(Function, called)

    return refuse


def _on_one_line(value: object) -> str:
    return f"{' '.join(repr(value).split()):.80}"
