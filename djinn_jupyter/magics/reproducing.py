"""Reproduction: a kept grid computed again, and compared bit for bit."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.lazily import reproducing, views
from djinn_jupyter.magics.parsing import KEEP, Group, option, verb
from djinn_jupyter.magics.redrawn import Redrawn
from djinn_jupyter.wire.texts import in_quotes

if TYPE_CHECKING:
    from djinn_jupyter.client.grid import Grid


@magics_class
class ReproducingMagics(Group):
    @verb(option("grid", metavar="FILE|NAME", help="a file that grid.save wrote, or a variable with a grid"), KEEP)
    def djinn_reproduce(self, args: Namespace) -> None:
        """Compute a grid again from its recipe, and say whether it has the same bits, or what differs."""
        progress = Redrawn(self.state.screen, at_once=False)
        found = reproducing.reproduce(
            self.state.engine,
            self._grid(args.grid),
            on_progress=lambda so_far, done, total: progress.draw(
                lambda: views.progress_line_view(f"{done} of {total} cells computed again")
            ),
        )
        self.state.keep(args.keep, found)
        self.state.screen.say("\n".join(found.lines()))

    def _grid(self, name: str) -> Grid | Path:
        """Return the value of a variable, or the path of a file."""
        there = self.state.shell.user_ns.get(name)
        if there is not None and not callable(there):
            return there  # type: ignore[no-any-return]  # reproduce looks at it
        path = Path(name).expanduser()
        if not path.is_file():
            raise UsageError(f"There is neither a variable nor a file {in_quotes(name)} with a grid.")
        return path
