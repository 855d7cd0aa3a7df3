"""Write the generated pages of `docs/reference/`, the wire's types for TypeScript, and the table of magics. A test
fails when one is out of date."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from djinn_jupyter.editors.dap import repl
from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.protocol import CAPABILITIES, Attach, Launch
from djinn_jupyter.engine.session import history
from djinn_jupyter.engine.session import residence as residency
from djinn_jupyter.engine.session.session import AnsweredRequest
from djinn_jupyter.engine.session.states import MOVES
from djinn_jupyter.engine.store import checkpoint_files, identity, image, records, values
from djinn_jupyter.magics import table
from djinn_jupyter.magics.parsing import Group, is_literal
from djinn_jupyter.magics.stand_ins import groups_in
from djinn_jupyter.methods.sweep import request as sweeps
from djinn_jupyter.widgets import html
from djinn_jupyter.wire import (
    base,
    edits,
    kinds,
    looks,
    modules,
    nouns,
    people,
    provenance,
    readings,
    registry,
    replies,
    requests,
)
from djinn_jupyter.wire import nouns as holdings
from djinn_jupyter.wire import people as quotas
from djinn_jupyter.wire.edits import Edit

sys.path.insert(0, str(Path(__file__).parent))
from python_api import python_api  # its neighbours; `docs` is no package
from vscode_manifest import manifest
from wire_ts import wire_ts

FOLDER = Path(__file__).parent / "reference"
PACKAGE = Path(__file__).parents[1] / "djinn_jupyter"
NOUNS = (
    nouns,
    base,
    edits,
    holdings,
    base,
    base,
    provenance,
    looks,
    quotas,
    people,
    readings,
    registry,
    modules,
    modules,
)
EXPANDED = """\
Every magic replaces `{x}` and `$x` in its line by values of Python, as IPython does: `%djinn_break {layer + 1}`.
A prompt, a value written `TEXT` or `EXPR` in these tables, and the body of a cell are taken as they stand; each
magic names its own.
"""
WRITTEN = "Written by `docs/write_reference.py`; change the code, not this file.\n"


def states() -> str:
    """The session's two transition tables as diagrams."""
    own = _diagram("idle", MOVES)
    where = _diagram("resident", residency.MOVES)
    return f"# States of a session\n\n{WRITTEN}\n{own}\n## Where its bytes are\n\n{where}"


def _diagram(first: str, moves: Mapping[tuple[str, str], str]) -> str:
    arrows = "\n".join(f"    {start} --> {end}: {move}" for (start, move), end in moves.items())
    return f"```mermaid\nstateDiagram-v2\n    [*] --> {first}\n{arrows}\n```\n"


def wire() -> str:
    """Return the page of all messages with their fields, from the structs."""
    parts = [
        "# Messages\n\n" + WRITTEN,
        _answers(),
        _chapter("Requests", kinds.ours().requests),
        _chapter("Replies", kinds.ours().replies),
        _chapter("Events", kinds.ours().events),
        _chapter("Edits", (*typing.get_args(Edit), *_structs(sweeps))),
        _chapter("Nouns", tuple(one for module in NOUNS for one in _structs(module) if not _is_message(one))),
    ]
    return "\n".join(parts)


def _answers() -> str:
    """Every request with the replies that it may get besides Failed, and its terms."""
    rows = "".join(
        f"| `{kind.__name__}` | {_spell(kind.answered_by)} | {kind.terms} |\n"
        for kind in sorted(kinds.ours().requests, key=lambda kind: kind.__name__)
    )
    return f"## Who is answered by what\n\n| request | answered by | terms |\n|---|---|---|\n{rows}"


def _is_message(kind: type) -> bool:
    return issubclass(kind, requests.RequestBase | replies.ReplyBase)


def _chapter(title: str, structs: tuple[type, ...]) -> str:
    return f"## {title}\n\n" + "\n".join(map(_struct, structs))


def _struct(kind: type[Any]) -> str:
    said = " ".join((kind.__doc__ or "").split()) if "__doc__" in vars(kind) else ""
    hints = typing.get_type_hints(kind)
    rows = [f"| `{field.name}` | `{_spell(hints[field.name])}` | {_default(field)} |" for field in _fields(kind)]
    table = "\n".join(["| field | type | default |", "|---|---|---|", *rows]) if rows else ""
    return "\n\n".join(part for part in (f"### {kind.__name__}", said, table) if part) + "\n"


def _fields(kind: type[Any]) -> Iterable[msgspec.structs.FieldInfo]:
    """Return the fields of a struct, or of a dataclass that is kept as one."""
    if issubclass(kind, msgspec.Struct):
        return msgspec.structs.fields(kind)
    own = {one.name: one.default for one in dataclasses.fields(kind)}
    plain = {name: msgspec.NODEFAULT if one is dataclasses.MISSING else one for name, one in own.items()}
    return [msgspec.structs.FieldInfo(name, name, None, default) for name, default in plain.items()]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    return f"`{field.default!r}`" if field.default_factory is msgspec.NODEFAULT else f"`{field.default_factory()!r}`"


def _spell(hint: Any) -> str:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(_spell(part) for part in typing.get_args(hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(repr(value) for value in arguments)
    if origin is not None:
        inner = ", ".join("..." if part is Ellipsis else _spell(part) for part in arguments)
        return f"{origin.__name__}[{inner}]"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


def checkpoint() -> str:
    """The file format of checkpoints and journals: records, and the structs in them."""
    layout = (records.__doc__ or "").split("\n\n")[1]
    owners = {"Label": checkpoint_files, "Model": identity, "Session": image, "Values": values}
    kept = {title: _structs(module) for title, module in owners.items()}
    kept["Session"] += (history.StopEdit, history.CachedEdit, AnsweredRequest)
    chapters = [_chapter(title, structs) for title, structs in kept.items()]
    said = (
        f"Format {records.FORMAT}. A checkpoint is a `{records.LABEL.decode()}` record (a label), "
        f"`{records.ARRAY.decode()}` records, and one `{records.SESSION.decode()}` record (a session), in msgpack. "
        "A field of type Tensor holds the number of an array."
    )
    return "\n".join(["# Files of records\n\n" + WRITTEN, said, f"\n```\n{layout}\n```\n", *chapters])


def _structs(module: Any) -> tuple[type, ...]:
    """The message structs that a module defines, in its order."""
    kinds_there = (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)
    return tuple(one for one in kinds_there if issubclass(one, msgspec.Struct))


def magics() -> str:
    """Every magic with its options, from its own parser."""
    return "\n".join(["# Magics\n\n" + WRITTEN, EXPANDED, *(_magic(member) for member in _magics())])


def magics_table() -> str:
    """Return the module of each magic, for `%load_ext`, which imports none of them."""
    rows = "".join(f'    "{member.__name__}": "{member.__module__}",\n' for member in _magics())
    cells = ", ".join(f'"{name}"' for group in _groups() for name in group.magics["cell"])
    return (
        '"""The module of each magic, in the order of the reference: `%load_ext` imports none of them.\n\n'
        "Written by `docs/write_reference.py`, which keeps the order that it finds here and puts new ones last.\n"
        f'"""\n\nfrom typing import Final\n\nMODULES: Final = {{\n{rows}}}\nCELL_MAGICS: Final = ({cells})\n'
    )


def _magics() -> Iterator[Any]:
    return (vars(group)[name] for group in _groups() for name in group.magics["line"])


@cache
def _groups() -> tuple[type[Group], ...]:
    """Return all groups of magics, in the order of the table that is there, new ones last."""
    files = [*PACKAGE.glob("magics/*.py"), *PACKAGE.rglob("magic.py"), *PACKAGE.rglob("magic/*.py")]
    names = sorted(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files)
    groups = [group for name in names for group in groups_in(import_module(name.removesuffix(".__init__")))]
    place = {name: number for number, name in enumerate(table.MODULES)}
    return tuple(sorted(dict.fromkeys(groups), key=lambda group: min(place.get(n, 999) for n in group.magics["line"])))


def _magic(member: Any) -> str:
    parser: argparse.ArgumentParser = member.parser
    rows = [f"| `{_option(action)}` | {action.help or ''} |" for action in parser._actions]
    said = " ".join((parser.description or "").split())
    table = "\n".join(["| argument | |", "|---|---|", *rows]) if rows else ""
    literal = ", ".join(f"`{_name(action)}`" for action in parser._actions if is_literal(action))
    stands = f"Taken as it stands: {literal}." if literal else ""
    return "\n\n".join(part for part in (f"## %{member.__name__}", said, table, stands) if part) + "\n"


def dap() -> str:
    """Return the page on the debug adapter, from the tables that it answers with."""
    capabilities = "\n".join(f"| `{name}` | {_can(value)} |" for name, value in CAPABILITIES.items())
    commands = Adapter(lambda message: None).handlers.commands
    parts = [
        "# The debug adapter\n\n" + WRITTEN,
        f"## Capabilities\n\n| capability | |\n|---|---|\n{capabilities}\n",
        "## Requests\n\n" + ", ".join(f"`{name}`" for name in sorted(commands)) + "\n",
        "## Configurations\n\n" + "\n".join(_struct(kind) for kind in (Launch, Attach)),
        "## The console\n\n" + "\n".join(_said(name, each) for name, each in _console().items()),
    ]
    return "\n".join(parts)


def _can(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else "none"


def _console() -> dict[str, argparse.ArgumentParser]:
    verbs = next(a for a in repl.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {action.dest: verbs.choices[action.dest] for action in verbs._choices_actions}


def _said(name: str, parser: argparse.ArgumentParser) -> str:
    rows = [f"| `{_option(action)}` | {action.help or ''} |" for action in parser._actions]
    table = "\n".join(["| argument | |", "|---|---|", *rows]) if rows else ""
    return "\n\n".join(part for part in (f"### {name}", table) if part) + "\n"


def _name(action: argparse.Action) -> str:
    return ", ".join(action.option_strings) or action.dest


def _option(action: argparse.Action) -> str:
    name = _name(action)
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return name if not action.option_strings or action.nargs == 0 else f"{name} {metavar}"


def cards_css() -> str:
    """The style sheet of all cards, for JupyterLab: where a notebook is not trusted, the cards' own is taken away."""
    head = "/* Written by docs/write_reference.py from widgets/html.py; change that, not this file. */"
    return f"{head}\n{html.style()}".replace("}", "}\n")


PAGES = {
    "states.md": states,
    "wire.md": wire,
    "magics.md": magics,
    "python.md": partial(python_api, WRITTEN),
    "dap.md": dap,
    "checkpoint.md": checkpoint,
    "../../djinn_jupyter/magics/table.py": magics_table,
    "../../labextension/style/cards.css": cards_css,
    "../../vscode/package.json": manifest,
    **{f"../../labextension/src/wire/{name}": partial(str, text) for name, text in wire_ts().items()},
}


def main() -> None:
    for name, write in PAGES.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
