"""What a notebook's user types: parse, call, show. No logic, no torch; numpy and plotly only when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load_ipython_extension(shell: InteractiveShell, client: Any = None) -> None:
    """Register all magics, their completion and the hooks around cells. `client` stands in for `djinn_jupyter` in
    tests."""
    from djinn_jupyter.magics import (
        branching,
        breaking,
        changing,
        debugging,
        keeping,
        loading,
        looking,
        memory,
        running,
        telling,
    )
    from djinn_jupyter.magics.completion import Matcher, register
    from djinn_jupyter.magics.workbench import Workbench

    bench = Workbench(shell, client)
    for group in (loading.LoadingMagics, breaking.BreakingMagics, running.RunningMagics, looking.LookingMagics,
                  changing.ChangingMagics, branching.BranchingMagics, keeping.KeepingMagics,
                  memory.MemoryMagics, debugging.DebuggingMagics):  # fmt: skip
        shell.register_magics(group(bench))
    register(shell, Matcher(bench))
    telling.register(shell, telling.Telling(bench))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics, the completion and the hooks away again; engines and sessions stay."""
    from djinn_jupyter.magics import telling
    from djinn_jupyter.magics.completion import unregister

    unregister(shell)
    telling.unregister(shell)
    group = shell.magics_manager.registry.get("MemoryMagics")
    if group is not None:
        group.bench.end_chart()
    for magics in shell.magics_manager.magics.values():
        for name in [name for name in magics if name.startswith("djinn_")]:
            del magics[name]
