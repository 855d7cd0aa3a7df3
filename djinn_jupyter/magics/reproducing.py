"""Reproduction: compute a kept result again, and compare it bit for bit."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.api import reproducing
from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import KEEP, Group, given, option, verb
from djinn_jupyter.magics.screen import Redrawn
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.texts import in_quotes


@magics_class
class ReproducingMagics(Group):
    @verb(
        option("result", metavar="FILE|NAME", help="a file that save wrote, the folder of a collection, or a variable"),
        option("--collection", metavar="FOLDER", help="of a trained module: the collection it was trained on"),
        KEEP,
    )
    def djinn_reproduce(self, args: Namespace) -> None:
        """Compute a result again, and print "The same bits", or the differences.

        A result with a recipe can be reproduced: a grid, losses, edges, a lens at a stop, a collection, a trained
        module."""
        progress = Redrawn(self.state.screen, at_once=False)
        found = reproducing.reproduce(
            self.state.engine,
            self._result(args.result),
            **given(collection=args.collection),
            on_progress=lambda so_far, done, total: progress.draw(
                lambda: views.progress_view(
                    f"{done} of {total} {'cells' if so_far is not None else 'prompts or steps'} computed again",
                    running=False,
                )
            ),
        )
        self.keep_and_show(args, found, "\n".join(found.lines()))

    def _result(self, name: str) -> object:
        """Return the value of a variable, or the path of a file."""
        there = self.state.shell.user_ns.get(name)
        if there is not None and not callable(there):
            return there
        path = given_path(name, "file or folder")
        if not path.exists():
            raise UsageError(f"There is neither a variable nor a file or folder {in_quotes(name)} with a result.")
        return path
