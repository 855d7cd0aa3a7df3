"""Read a configuration from a file and `--set key=value`, and architectures; a mistake is told in one sentence."""

from __future__ import annotations

import difflib
import json
import math
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.errors import MissingDependency, UsageError
from djinn_jupyter.wire.texts import in_quotes

Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Layer: TypeAlias = Annotated[int, Meta(ge=0)]
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
OwnDtype: TypeAlias = Annotated[
    Dtype | None, Meta(description="The dtype it is served in; the model's own by default.")
]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Gigabytes: TypeAlias = Annotated[float, Meta(gt=0)]


def about(description: str, **bounds: Any) -> Meta:
    """Return the meaning of a key, and its bounds by msgspec."""
    return Meta(description=description, **bounds)


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
    """Return the section of a key, also an optional one; None where the key has a value."""
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


AnySection = TypeVar("AnySection", bound=Section)
DEEPEST: Final = 64
_UNKNOWN = re.compile(r"unknown field `(?P<key>[^`]*)`")
_WHERE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<key>[^`]*)`")


def shipped_files() -> tuple[str, ...]:
    """Return the names of the configuration files in the package."""
    return tuple(sorted(file.name for file in _shipped("files").iterdir() if file.name.endswith(".yaml")))


def read(path: str, kind: type[AnySection], settings: Iterable[str] = ()) -> AnySection:
    """Read the file at `path`, or the shipped one of that name. Raises UsageError with one sentence."""
    text = _text_of(path)
    return parse(text, kind, settings, source=path)


def parse(
    text: str, kind: type[AnySection], settings: Iterable[str] = (), *, source: str = "the configuration"
) -> AnySection:
    tree = decode_yaml(text, source)
    if not isinstance(tree, dict):
        raise UsageError(f"{source} holds no keys; see `djinn experiment NAME --explain` for them.")
    for setting in settings:
        _set(tree, setting)
    try:
        found = msgspec.convert(tree, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {_sentence(str(error), kind)}") from None
    _check_all(found)
    return found


def explain(kind: type[Section]) -> str:
    """Return one line for each key, with its explanation, kind and default."""
    keys = list(keys_of(kind))
    width = max(len(key.path) for key in keys)
    lines = []
    for key in keys:
        default = "required" if key.required else f"default {_shown(key.default)}"
        lines.append(f"{key.path.ljust(width)}  {key.explanation} ({key.kind}; {default})")
    return "\n".join(lines)


def _shipped(folder: str) -> Any:
    return resources.files("djinn_evaluation.configuration") / folder


def _text_of(path: str) -> str:
    file = given_path(path, "configuration file")
    if file.is_file():
        try:
            return file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read as text: {error}.") from None
    if path in shipped_files():
        text: str = (_shipped("files") / path).read_text()
        return text
    raise UsageError(
        f"There is no configuration file {in_quotes(path)}; give a path, or one of {', '.join(shipped_files())}."
    )


def decode_yaml(text: str, source: str) -> Any:
    """Decode YAML. UsageError where the text is no YAML, or nested deeper than any configuration is."""
    try:
        import yaml  # type: ignore[import-untyped]

        _require_shallow(text, source)
        return msgspec.yaml.decode(text)
    except ImportError:
        raise MissingDependency("Configuration files need PyYAML: pip install pyyaml.") from None
    except (msgspec.DecodeError, yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{source} is no YAML: {' '.join(str(error).split()).rstrip('.')}.") from None


def _require_shallow(text: str, source: str) -> None:
    """Refuse deep nesting: PyYAML's composer in C recurses for each level, and a stack overflow ends the process."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UsageError(f"{source} nests deeper than {DEEPEST} levels; no configuration does.")


def _set(tree: dict[str, Any], setting: str) -> None:
    path, equals, value = setting.partition("=")
    if not equals or not path:
        raise UsageError(f"--set takes key=value, for example experiment.num_trials=1; this is {setting!r}.")
    *sections, last = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise UsageError(f"--set {setting}: {section} holds a value, not keys.")
    tree[last] = decode_yaml(value, f"--set {setting}")


def _sentence(error: str, kind: type[Section]) -> str:
    """Return msgspec's error message with the dotted path, and the known keys where one is unknown."""
    where = _WHERE.search(error)
    path = where["path"] if where else ""
    known = [key.path for key in keys_of(kind)]
    if unknown := _UNKNOWN.search(error):
        asked = f"{path}.{unknown['key']}".lstrip(".")
        beside = [key for key in known if key.startswith(f"{path}.")] if path else known
        near = difflib.get_close_matches(asked, known, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        return f"there is no key {asked}.{meant} Known keys here: {', '.join(beside)}."
    if missing := _MISSING.search(error):
        asked = f"{path}.{missing['key']}".lstrip(".")
        return f"the key {asked} is missing."
    text = _WHERE.sub("", error).rstrip(".")
    return f"{path}: {text[0].lower()}{text[1:]}."


def _check_all(section: Section, above: str = "") -> None:
    for field in msgspec.structs.fields(type(section)):
        inner, path = getattr(section, field.name), f"{above}{field.encode_name}"
        if isinstance(inner, Section):
            _check_all(inner, f"{path}.")
        if isinstance(inner, float) and not math.isfinite(inner):
            raise UsageError(f"{path} is {inner}; give a number that has an end.")
    section.check()


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else repr(value)


# The engine or baseline that loads it draws the weights; this module handles only its config.json.
PREFIX = "architecture."


def split(settings: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the settings of the experiment's file, and those of the architecture by key."""
    own, sizes = [], {}
    for setting in settings:
        if not setting.startswith(PREFIX):
            own.append(setting)
            continue
        key, equals, value = setting.removeprefix(PREFIX).partition("=")
        if not equals or not key:
            raise UsageError(f"--set takes key=value, for example architecture.num_hidden_layers=4; not {setting!r}.")
        sizes[key] = decode_yaml(value, f"--set {setting}")
    return own, sizes


@contextmanager
def architecture(config: str | None, sizes: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield what is loaded with random weights: a folder with a config.json, a hub name, or None."""
    if config is None:
        if sizes:
            raise UsageError("--set architecture... changes the sizes of what --random-weights names; give that too.")
        yield None
        return
    found = _known(config)
    if found is None:
        if sizes:
            raise UsageError(
                f"The sizes of {config} cannot be changed, for its config.json is not at hand; give a path."
            )
        yield config
        return
    if unknown := sorted(sizes.keys() - found.keys()):
        raise UsageError(f"{config} has no key {unknown[0]}; its keys are {', '.join(sorted(found))}.")
    with tempfile.TemporaryDirectory(prefix="djinn-architecture-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**found, **sizes}))
        yield folder


def shipped_architectures() -> tuple[str, ...]:
    """Return the names of the architectures in the package."""
    return tuple(sorted(file.name.removesuffix(".json") for file in _shipped("architectures").iterdir()))


def _known(config: str) -> dict[str, Any] | None:
    path = given_path(config, "architecture")
    path = path / "config.json" if path.is_dir() else path
    name = config.rpartition("/")[2]
    if not path.is_file():
        if name in shipped_architectures():
            return _read(config, (_shipped("architectures") / f"{name}.json").read_text())
        if path.suffix == ".json" or config.startswith((".", "/", "~")):
            raise UsageError(f"There is no architecture {config}; give a folder, a config.json or a hub name.")
        return None
    return _read(config, path.read_text())


def _read(config: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "model_type" not in found:
        raise UsageError(f"{config} is no configuration of a model: it has no model_type.")
    return found
