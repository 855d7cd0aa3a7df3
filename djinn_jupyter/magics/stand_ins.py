"""`%load_ext` puts stand-ins for all magics into IPython's tables. The first look-up of a magic imports its module, and
the module's magics replace their stand-ins.

IPython, from 7.34 to 9, looks a magic up by `magics_manager.magics[kind].get(name)` for a call, `?` and completion,
before it reads how the magic parses its line. So each finds the magic itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from IPython.core import completer

from djinn_jupyter import extensions
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.table import CELL_MAGICS, MODULES

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from djinn_jupyter.magics.completion import Matcher
    from djinn_jupyter.magics.kernel_state import KernelState
    from djinn_jupyter.magics.parsing import Group

_IDENTIFIER: Final = "djinn_jupyter"  # of our matcher


@dataclass(frozen=True, slots=True, eq=False)
class StandIn:
    """Holds the place of a magic while its module is not imported. Code that walks a table directly still reads and
    calls the magic itself."""

    table: MagicTable
    name: str

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self.table[self.name].__doc__

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.table[self.name], attribute)

    def __call__(self, *args: Any, **given: Any) -> Any:
        return self.table[self.name](*args, **given)


class MagicTable(dict[str, Any]):
    """One of IPython's two tables of magics, in which looking up one of our magics imports its module."""

    def __init__(self, held: Mapping[str, Any], owner: StandIns) -> None:
        super().__init__(held)
        self.owner = owner

    def get(self, name: str, default: Any = None) -> Any:
        try:
            if self.is_open(name):
                self.owner.bring(name)
        except UsageError as error:
            return _refusing(str(error))
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        held = self.get(name)
        return super().__getitem__(name) if held is None else held

    def is_open(self, name: str) -> bool:
        """Return whether the name is free, or has a stand-in."""
        held = super().get(name)
        return held is None or isinstance(held, StandIn)

    def drop(self, names: Iterable[str]) -> None:
        """Remove those of these names that still have a stand-in: their module has no such magic."""
        for name in names:
            if name in self and self.is_open(name):
                del self[name]

    def without(self, names: Container[str]) -> dict[str, Any]:
        """Return the table without these names, as a plain table."""
        return {name: held for name, held in self.items() if name not in names}


class StandIns:
    """The magics of one kernel: the module of each, and the state that the first used magic makes for all. `waiting`
    are the modules not yet imported."""

    def __init__(self, shell: InteractiveShell, client: Any = None) -> None:
        self._shell: Any = shell
        self._client = client
        theirs = extensions.magics(MODULES).items()  # of strangers, except names that IPython or the user has
        there = {name for table in self._shell.magics_manager.magics.values() for name in table}
        self._modules = {**MODULES, **{name: module for name, module in theirs if name not in there}}
        self._waiting = set(self._modules.values())

    @cached_property
    def state(self) -> KernelState:
        from djinn_jupyter.magics.kernel_state import CellEvents, KernelState, register

        state = KernelState(self._shell, self._client)
        register(self._shell, CellEvents(state))
        return state

    @cached_property
    def matcher(self) -> Matcher:
        from djinn_jupyter.magics.completion import Matcher

        return Matcher(self.state)

    def enter(self) -> None:
        """Put a stand-in for each magic into the shell's tables. Cell magics of strangers are listed once imported."""
        tables = self._shell.magics_manager.magics
        for kind, names in (("line", self._modules), ("cell", CELL_MAGICS)):
            tables[kind] = table = MagicTable(tables[kind], self)
            table.update({name: StandIn(table, name) for name in names})

    def leave(self) -> None:
        """Remove the magics, and the hooks of their state."""
        tables = self._shell.magics_manager.magics
        for kind in ("line", "cell"):
            tables[kind] = tables[kind].without(self._modules)
        if "state" in vars(self):
            from djinn_jupyter.magics.kernel_state import unregister

            unregister(self._shell)
            self.state.end_chart()

    def bring(self, name: str) -> None:
        """Import the module of a magic (ours or a stranger's, if not yet imported), and replace the stand-ins by its
        magics. Raises UsageError where a stranger's cannot be imported."""
        module = self._modules.get(name, "")
        if module not in self._waiting:
            return
        try:
            groups = [kind(self.state) for kind in groups_in(import_module(module))]
        except KeyboardInterrupt:
            raise UsageError("Interrupted. Nothing was asked of the engine yet.") from None
        except BaseException as error:  # a stranger's module may raise anything
            if module in MODULES.values():
                raise
            why = extensions.in_short(error)
            raise UsageError(
                f"%{name} is in {module}, which cannot be imported ({why}): mend or uninstall it."
            ) from None
        self._waiting.discard(module)
        for group in groups:
            self._put(group, module)
        for table in self._shell.magics_manager.magics.values():
            table.drop(name for name, home in self._modules.items() if home == module)

    def _put(self, group: Group, module: str) -> None:
        """Register a group, without magics whose names another module, the user or IPython has."""
        tables = self._shell.magics_manager.magics
        for kind, magics in group.magics.items():
            free = [name for name in magics if tables[kind].is_open(name)]
            mine = [name for name in free if self._modules.setdefault(name, module) == module]
            group.magics[kind] = {name: magics[name] for name in mine}
        self._shell.register_magics(group)


def groups_in(module: ModuleType) -> Iterator[type[Group]]:
    """Yield the groups of magics that a module defines, or the modules within it."""
    from djinn_jupyter.magics.parsing import Group

    groups = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Group)]
    within = f"{module.__name__}."
    yield from (one for one in groups if one is not Group and f"{one.__module__}.".startswith(within))


def _refusing(sentence: str) -> Callable[..., None]:
    """Return a magic that gives the reason why the one of its name is missing, in a call and in its help."""
    from djinn_jupyter.magics.parsing import OneLine

    def refuse(*given: str) -> None:
        raise OneLine(sentence)

    refuse.__doc__ = sentence
    return refuse


def register(shell: InteractiveShell, client: Any = None) -> None:
    """Put stand-ins for all magics, and one matcher that completes their lines; other lines pass through unchanged."""
    unregister(shell)
    made = StandIns(shell, client)
    made.enter()
    sys.stdout.writelines(f"{said}\n" for said in extensions.troubles().values())

    if hasattr(completer, "context_matcher"):
        shell.Completer.custom_matchers.append(_matcher(made))
    else:
        shell.Completer.magic_arg_matchers.append(_matcher_before_8_6(made, shell.Completer))


def unregister(shell: InteractiveShell) -> None:
    """Remove all of it; engines and sessions stay."""
    for matchers in (shell.Completer.custom_matchers, shell.Completer.magic_arg_matchers):
        matchers[:] = [one for one in matchers if getattr(one, "matcher_identifier", None) != _IDENTIFIER]
    present = of(shell)
    if present is not None:
        present.leave()


def _matcher(made: StandIns) -> Any:
    @completer.context_matcher(identifier=_IDENTIFIER)  # type: ignore[untyped-decorator]
    def djinn_matcher(context: completer.CompletionContext) -> Any:
        line = context.line_with_cursor[: context.cursor_position]
        if context.cursor_line != 0 or not line.lstrip().startswith(("%djinn_", "%%djinn_")):
            return {"completions": []}
        texts = made.matcher.matches(line)
        completions = [completer.SimpleCompletion(text=text, type="magic") for text in texts]
        return {"completions": completions, "matched_fragment": line.rsplit(" ", 1)[-1], "suppress": bool(texts)}

    return djinn_matcher


def _matcher_before_8_6(made: StandIns, held: Any) -> Callable[[str], list[str]]:
    """Return a matcher for IPython 7, as on Colab, which replaces the part of the last word behind a delimiter."""

    def djinn_matcher(line: str) -> list[str]:
        line = held.text_until_cursor
        if not line.lstrip().startswith(("%djinn_", "%%djinn_")):
            return []
        word = line.rsplit(" ", 1)[-1]
        before = len(word) - len(held.splitter.split_line(line))
        return [text[before:] for text in made.matcher.matches(line)]

    djinn_matcher.matcher_identifier = _IDENTIFIER  # type: ignore[attr-defined]
    return djinn_matcher


def of(shell: InteractiveShell) -> StandIns | None:
    """Return the magics in the tables of a shell; None where the extension is not loaded."""
    table = shell.magics_manager.magics["line"]
    return table.owner if isinstance(table, MagicTable) else None
