"""The magics: parse, call, show. No logic, no torch; a magic's module is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load_ipython_extension(shell: InteractiveShell, client: Any = None) -> None:
    """Register all magics, their completion and the hooks around cells. `client` replaces `djinn_jupyter` in tests."""
    from djinn_jupyter.magics import questions, stand_ins

    stand_ins.register(shell, client)
    questions.register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove the magics, the completion and the hooks; engines and sessions stay."""
    from djinn_jupyter.magics import questions, stand_ins

    stand_ins.unregister(shell)
    questions.unregister(shell)
