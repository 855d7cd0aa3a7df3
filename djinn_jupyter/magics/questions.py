"""Run a magic's line that ends in a question mark; IPython alone would take it for a question about its last word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from IPython.core.inputtransformer2 import HelpEnd, assemble_continued_line, find_end_of_continued_line

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_WITH_TEXT = re.compile(r"(?P<to>[^%=]+=\s*)?%(?P<magic>djinn_\w+)\s+(?P<text>.*[^?\s].*)")


class LineOfAMagic(HelpEnd):
    """`%djinn_run What is it?`, also behind `name =`. `%djinn_run?` stays help."""

    priority = HelpEnd.priority - 1

    def transform(self, lines: list[str]) -> list[str]:
        """Return the cell with the line as a call of its magic. Raises SyntaxError, which leaves the line to IPython,
        where no text follows one of our magics."""
        end = find_end_of_continued_line(lines, self.start_line)
        found = _WITH_TEXT.fullmatch(assemble_continued_line(lines, (self.start_line, self.start_col), end))
        if found is None:
            raise SyntaxError
        indent = lines[self.start_line][: self.start_col]
        call = f"get_ipython().run_line_magic({found['magic']!r}, {found['text']!r})\n"
        return [*lines[: self.start_line], indent + (found["to"] or "") + call, *lines[end + 1 :]]


def register(shell: InteractiveShell) -> None:
    """Make the shell read such lines as ours."""
    unregister(shell)
    shell.input_transformer_manager.token_transformers.append(LineOfAMagic)


def unregister(shell: InteractiveShell) -> None:
    """Leave such lines to IPython."""
    transformers = shell.input_transformer_manager.token_transformers
    transformers[:] = [one for one in transformers if one is not LineOfAMagic]
