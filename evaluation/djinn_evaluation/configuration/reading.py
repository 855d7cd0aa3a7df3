"""Read a configuration from a file and `--set key=value`; each mistake in either is reported in one sentence."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any, Final, TypeVar

import msgspec

from djinn_evaluation.configuration.section import Section, keys_of
from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.errors import MissingDependency, UsageError
from djinn_jupyter.wire.texts import in_quotes

AnySection = TypeVar("AnySection", bound=Section)
DEEPEST: Final = 64
_UNKNOWN = re.compile(r"unknown field `(?P<key>[^`]*)`")
_WHERE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<key>[^`]*)`")


def shipped() -> tuple[str, ...]:
    """Return the names of the configuration files in the package."""
    return tuple(sorted(file.name for file in _files().iterdir() if file.name.endswith(".yaml")))


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


def _files() -> Any:
    return resources.files("djinn_evaluation.configuration") / "files"


def _text_of(path: str) -> str:
    file = given_path(path, "configuration file")
    if file.is_file():
        try:
            return file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read as text: {error}.") from None
    if path in shipped():
        text: str = (_files() / path).read_text()
        return text
    raise UsageError(
        f"There is no configuration file {in_quotes(path)}; give a path, or one of {', '.join(shipped())}."
    )


def decode_yaml(text: str, source: str) -> Any:
    """Decode YAML. UsageError where the text is no YAML, or nested deeper than any configuration is."""
    try:
        import yaml  # type: ignore[import-untyped]

        _require_shallow(text, source)
        return msgspec.yaml.decode(text)
    except ImportError:
        raise MissingDependency("Configuration files need PyYAML: pip install 'djinn-jupyter[engine]'.") from None
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
