"""The magics: parse, call, show. No logic, no torch; numpy and plotly only when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load_ipython_extension(shell: InteractiveShell, client: Any = None) -> None:
    """Register all magics, their completion and the hooks around cells. `client` stands in for
    `djinn_jupyter` in tests."""
    from djinn_jupyter.magics import cell_events, questions
    from djinn_jupyter.magics.completion import Matcher, register
    from djinn_jupyter.magics.groups import GROUPS
    from djinn_jupyter.magics.kernel_state import KernelState

    state = KernelState(shell, client)
    for group in GROUPS:
        shell.register_magics(group(state))
    register(shell, Matcher(state))
    questions.register(shell)
    cell_events.register(shell, cell_events.CellEvents(state))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics, the completion and the hooks away again; engines and sessions stay."""
    from djinn_jupyter.magics import cell_events, questions
    from djinn_jupyter.magics.completion import unregister

    unregister(shell)
    questions.unregister(shell)
    cell_events.unregister(shell)
    group = shell.magics_manager.registry.get("MemoryMagics")
    if group is not None:
        group.state.end_chart()
    for magics in shell.magics_manager.magics.values():
        for name in [name for name in magics if name.startswith("djinn_")]:
            del magics[name]
