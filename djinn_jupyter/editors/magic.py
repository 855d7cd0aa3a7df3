"""JupyterLab's own debugger panel on a stopped forward pass: on, off."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import magics_class

from djinn_jupyter.magics.parsing import Group, option, verb

if TYPE_CHECKING:
    from djinn_jupyter.editors.panel import NativePanel
    from djinn_jupyter.magics.kernel_state import KernelState


@magics_class
class DebuggingMagics(Group):
    def __init__(self, state: KernelState) -> None:
        super().__init__(state)
        self._panel: NativePanel | None = None

    @verb(option("state", nargs="?", choices=["on", "off"], help="on or off; without it says which it is"))
    def djinn_debugger(self, args: Namespace) -> None:
        """Show stops in JupyterLab's debugger (experimental).

        Modules are its call stack, activations its variables, its buttons moves. Python debugging works as before."""
        if args.state == "on" and self._panel is None:
            from djinn_jupyter.editors.panel import NativePanel

            panel = NativePanel(self.state)
            panel.start()
            self._panel = panel
        elif args.state == "off" and self._panel is not None:
            self._panel.stop()
            self._panel = None
        state = "off" if self._panel is None else "on (experimental): stops show in JupyterLab's debugger panel"
        self.state.screen.say(f"the debugger panel is {state}")
