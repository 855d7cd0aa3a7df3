"""The base of every section of a configuration, and the keys of a section."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Layer: TypeAlias = Annotated[int, Meta(ge=0)]
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
OwnDtype: TypeAlias = Annotated[
    Dtype | None, Meta(description="The dtype it is served in; the model's own by default.")
]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Gigabytes: TypeAlias = Annotated[float, Meta(gt=0)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """Keys with types and bounds. A key that is not here is an error; each is explained by its Meta description."""

    def check(self) -> None:
        """Raise UsageError where values that are valid alone contradict each other."""


_WORDS = {"str": "text", "int": "integer", "float": "number", "bool": "true | false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a configuration by its dotted path. `default` is None where the key must be given."""

    path: str
    kind: str
    explanation: str
    required: bool
    default: object


def keys_of(section: type[Section], prefix: str = "") -> Iterator[Key]:
    """Yield every key below a section, in the order of the file."""
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        hint, path = hints[field.name], f"{prefix}{field.encode_name}"
        inner = section_in(hint)
        if inner is not None:
            yield from keys_of(inner, f"{path}.")
            continue
        required = field.required
        default = None if required else _default_of(field)
        yield Key(path=path, kind=_spelled(hint), explanation=_explained(hint), required=required, default=default)


def section_in(hint: Any) -> type[Section] | None:
    """Return the section that a key holds, also where it is optional; None where it holds a value."""
    for part in (hint, *get_args(hint)):
        plain = get_args(part)[0] if get_origin(part) is Annotated else part
        if isinstance(plain, type) and issubclass(plain, Section):
            return plain
    return None


def _default_of(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _explained(hint: Any) -> str:
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Annotated:
            for note in reversed(part.__metadata__):
                if isinstance(note, Meta) and note.description:
                    return note.description
    return ""


def _spelled(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _spelled(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return f"list of {_spelled(get_args(hint)[0])}"
    arguments = [part for part in get_args(hint) if part is not type(None)]
    if arguments and not isinstance(arguments[0], type) and get_origin(arguments[0]) is None:
        return " | ".join(repr(part) for part in arguments)
    if arguments:
        return " | ".join(_spelled(part) for part in arguments)
    name: str = hint.__name__
    return _WORDS.get(name, name)
