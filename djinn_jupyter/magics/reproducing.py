"""Reproduction: compute a kept result again, and compare it bit for bit; and studies, several results in one file."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.api import reproducing, studies
from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.api.result_files import STUDY
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import KEEP, Group, given, option, refuse_others, verb
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

    @verb(
        option("path", metavar="FILE", help=f"the study's file; a name without {STUDY} gets it"),
        option("--add", metavar="NAME", help="add the result, table or figure in this variable, and save"),
        option("--title", metavar="TEXT", help="the title of what is added; an item with the same title is replaced"),
        option("--note", metavar="TEXT", help="a text in Markdown beside what is added, or an item of its own"),
        option("--check", action="store_true", help="say for each item whether it is read here; needs no engine"),
        option("--reproduce", action="store_true", help="compute each item again, and compare bit for bit"),
        KEEP,
    )
    def djinn_study(self, args: Namespace) -> None:
        """Keep results, figures and text of a piece of work in one file, and show, check or compute them again.

        The file is a zip file with a page, index.html. `-o` keeps the study, or the report of a check."""
        path = args.path if args.path.endswith(STUDY) else f"{args.path}{STUDY}"
        if args.check or args.reproduce:
            refuse_others(args, "--check" if args.check else "--reproduce", "path", "keep")
            study = studies.Study.read(path)
            report = study.check() if args.check else study.reproduce(self.state.engine)
            self.keep_and_show(args, report, views.study_report_view(report))
            return
        if args.add is None and args.note is None:
            refuse_others(args, "a study that is shown", "path", "keep")
            study = studies.Study.read(path)
        else:
            study = self._extended(args, path)
        self.keep_and_show(args, study, views.study_view(study))

    def _extended(self, args: Namespace, path: str) -> studies.Study:
        """Return the study of a file, with what is added, saved."""
        there = given_path(path, "file")
        study = studies.Study.read(there) if there.exists() else studies.Study(there.name.removesuffix(STUDY))
        if args.add is None:
            study.note(args.note, args.title)
        else:
            study.add(self._variable(args.add), args.title, args.note or "")
        study.save(there)
        return study

    def _variable(self, name: str) -> object:
        """Return the value of a variable. Raises UsageError where there is none."""
        if name not in self.state.shell.user_ns:
            raise UsageError(f"There is no variable {in_quotes(name)} in this notebook.")
        return self.state.shell.user_ns[name]

    def _result(self, name: str) -> object:
        """Return the value of a variable, or the path of a file."""
        there = self.state.shell.user_ns.get(name)
        if there is not None and not callable(there):
            return there
        path = given_path(name, "file or folder")
        if not path.exists():
            raise UsageError(f"There is neither a variable nor a file or folder {in_quotes(name)} with a result.")
        return path
