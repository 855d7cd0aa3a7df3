"""Parse the lines of magics, and the decorator that makes a method a magic, which parses and reports errors."""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError as ShellUsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, needs_local_scope, no_var_expand
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments
from IPython.utils.text import DollarFormatter

from djinn_jupyter.displayed import PICTURES
from djinn_jupyter.errors import DjinnError, IllegalMove, KeyRefused, OverQuota, SessionsWouldSuffer, UsageError
from djinn_jupyter.link import naming, spelling
from djinn_jupyter.settings import GivenSampling, settings_of
from djinn_jupyter.wire.logs import asked_by
from djinn_jupyter.wire.texts import in_quotes
from djinn_jupyter.wire.texts import unquoted as unquoted

if TYPE_CHECKING:
    from djinn_jupyter.api.engine import RemoteEngine
    from djinn_jupyter.magics.kernel_state import KernelState
    from djinn_jupyter.widgets.view import View

# IPython's own `UsageError` leaves no error output, from which papermill and others read the reason.
OneLine: Any = type("UsageError", (ShellUsageError,), {"_render_traceback_": lambda self: [f"UsageError: {self}"]})
Option = Callable[[Any], Any]
Read = Callable[[MagicArgumentParser, str], Namespace]
_REFUSED = (UsageError, IllegalMove, KeyRefused, OverQuota, SessionsWouldSuffer)
UNHEARD = "The engine finishes what it was asked; its answer is not waited for any more."
TEXTS = ("TEXT", "EXPR")  # the metavars of values that are taken as they stand
_NEGATIVE = re.compile(r"^-[\d.]")
_WORD = re.compile(r"\"[^\"]*\"|'[^']*'|\S+")
_UNEXPANDED = re.compile(r"(?:\"[^\"]*\"|'[^']*'|\{[^{}]*\}|\S)+")  # a word, whose names in braces may have spaces
_DESTS = {"max_new_tokens": "max_tokens", "top": "k"}  # parameters of Python whose option has another name
_PARAMETER = re.compile(r"^\w+(?=: )|\b[a-z]+(?:_[a-z]+)+\b(?!=)")
_NOTEBOOK = re.compile(r"(?P<quote>[\"'])(?P<name>(?:(?!(?P=quote)).)*\.ipynb)(?P=quote)")
_QUOTED = re.compile(r"(?s)^(?P<quote>[\"'])(?P<text>.*?)(?P=quote)(?P<rest>(?:\s.*)?)$")


class Group(Magics):
    """Magics of one subject, on one kernel's state."""

    def __init__(self, state: KernelState) -> None:
        super().__init__(state.shell)
        self.state = state

    def keep_and_show(self, args: Namespace, result: object, shown: View | str) -> None:
        """Keep a result for `-o`, and show its card, or print a line on it."""
        self.state.keep(args.keep, result)
        if isinstance(shown, str):
            self.state.screen.say(shown)
        else:
            self.state.screen.show(shown)

    def keep_and_draw(self, args: Namespace, result: object, view: View) -> None:
        """Keep a result, show its card, and draw its figure."""
        self.keep_and_show(args, result, view)
        self.draw(args, view)

    def draw(self, args: Namespace, view: View) -> None:
        """Show the figure of a view, for --hover, and write it, for --save. In one output with its card a page would
        draw only the figure."""
        if args.hover:
            self.state.screen.show(view.figure())
        if args.save is not None:
            self.state.screen.say(f"written: {view.charted().save(args.save).name}")


def option(*names: str, **settings: Any) -> Option:
    """Return an argument of a magic, for argparse. Quotes around a text are removed; words of `nargs="+"` keep
    theirs."""
    if settings.get("nargs", "?") == "?" and not settings.keys() & {"type", "action"}:
        settings["type"] = unquoted
    made: Option = argument(*names, **settings)  # type: ignore[no-untyped-call]
    return made


def read(parser: MagicArgumentParser, line: str) -> Namespace:
    """Return the arguments of a line. `--positions -1` is a value; a word that begins with # starts a comment."""
    words = words_of(line[: _comment_at(line)], posix=False)
    _refuse_unknown(parser, words)
    return parser.parse_args(_with_negatives(parser, _in_full(parser, words)))


def words_of(line: str, *, posix: bool) -> list[str]:
    """Return the words of a line; `posix` removes their quotes. Raises UsageError for an open quote."""
    try:
        return shlex.split(line, posix=posix)
    except ValueError:
        raise UsageError(f"A quote in this line is not closed: {line.strip()}") from None


def _comment_at(line: str) -> int:
    """Return the index where the comment of a line begins, or its end."""
    return next((word.start() for word in _WORD.finditer(line) if word[0].startswith("#")), len(line))


def read_prompt(parser: MagicArgumentParser, line: str) -> Namespace:
    """Read options, then a prompt verbatim, including apostrophes. A quoted prompt may also precede the options."""
    line = line.strip()
    found = list(_WORD.finditer(line))
    _refuse_unknown(parser, _leading_options(parser, [m.group() for m in found]))
    args = parser.parse_args(_with_negatives(parser, [m.group() for m in found]))
    args.late = None
    prompt = line[found[-len(args.prompt)].start() :] if args.prompt else ""
    quoted = _QUOTED.match(prompt)
    if quoted and not quoted["rest"].strip():
        args.prompt = quoted["text"]
    elif quoted and quoted["rest"].strip().startswith("-"):
        args = read_prompt(parser, line[: len(line) - len(prompt)] + quoted["rest"])
        if args.prompt:
            raise UsageError("A prompt in quotes is followed by options only.")
        args.prompt = quoted["text"]
    else:
        args.late = _late_option(parser, prompt)
        args.prompt = prompt
    return args


def verb(*options: Option, cell: bool = False, reader: Read = read) -> Callable[[Callable[..., None]], Any]:
    """Make a method a magic: it gets the parsed line (and the cell); errors of the domain become one line. `$x` and
    `{x}` are replaced in the line, except in literal arguments."""

    def decorate(method: Callable[..., None]) -> Any:
        @functools.wraps(method)
        def magic(self: Group, line: str, *body: str, local_ns: Mapping[str, Any] | None = None) -> None:
            line = expanded(made.parser, line, {**self.state.shell.user_ns, **(local_ns or {})})
            args = Namespace()
            try:
                with asked_by(f"%{method.__name__}"), self.state.with_names():
                    args = reader(made.parser, line)
                    args.given = _flags_given(made.parser, args)
                    method(self, args, *body)
            except DjinnError as error:
                said = as_typed(made.parser, " ".join(str(error).split()))
                raise OneLine(f"{said}{_where_logged(error, self.state.loaded)}") from None
            except ShellUsageError as error:  # argparse's own
                raise OneLine(_in_words(made.parser, str(error))) from None
            except KeyboardInterrupt as broken:
                raise _interrupted(self, broken, getattr(args, "keep", None)) from None
            finally:
                self.state.tell_unkept()

        made: Any = (line_cell_magic if cell else line_magic)(magic)
        for each in reversed(options):
            made = each(made)
        made = magic_arguments()(made)  # type: ignore[no-untyped-call]
        return no_var_expand(needs_local_scope(made))

    return decorate


def _interrupted(group: Group, broken: KeyboardInterrupt, name: str | None) -> Exception:
    """Return the error of an interrupted magic with what was `kept`; the variable of -o has it too."""
    kept, said = getattr(broken, "kept", None), str(broken) or UNHEARD
    if kept is not None and name is not None:
        group.state.keep(name, kept)
        said += f" So does {name}."
    ended: Exception = OneLine(f"Interrupted. {said}")
    ended.kept = kept  # type: ignore[attr-defined]  # of the error that the cell raises
    return ended


def is_literal(action: argparse.Action) -> bool:
    """Return whether `$x` and `{x}` are not replaced in an argument: in a prompt, a text or an expression."""
    return action.nargs == argparse.REMAINDER or action.metavar in TEXTS


def expanded(parser: argparse.ArgumentParser, line: str, names: Mapping[str, Any]) -> str:
    """Replace `$x` and `{x}` in a line like IPython, but not in literal arguments. Unknown names stay."""
    prompt = any(action.nargs == argparse.REMAINDER for action in parser._actions)
    parts, end = [], 0
    taking: argparse.Action | None = None
    for found in _UNEXPANDED.finditer(line):
        word, taker = found[0], taking
        if word.startswith("-") and word != "--" and not _NEGATIVE.match(word):
            name, joined, _ = word.partition("=")
            taker = _taking(parser, name)
            taking = None if joined else taker
        elif taking is None and prompt:
            break
        elif taking is not None and taking.nargs != "+":
            taking = None
        literal = taker is not None and is_literal(taker)
        parts += [line[end : found.start()], word if literal else _formatted(word, names)]
        end = found.end()
    return "".join(parts) + line[end:]


def _taking(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    """Return the option of this name, or of its abbreviation, that takes a value."""
    options = parser._option_string_actions
    fitting = [options[name]] if name in options else [one for full, one in options.items() if full.startswith(name)]
    return next((one for one in fitting if one.nargs != 0), None)


def _formatted(word: str, names: Mapping[str, Any]) -> str:
    try:
        return DollarFormatter().vformat(word, (), names)
    except Exception:  # noqa: BLE001  as IPython: braces that are no name of the user's are left as they are
        return word


def _where_logged(error: DjinnError, engine: RemoteEngine | None) -> str:
    """Return where the log has more on a request that failed in the engine; only the engine's own user can read it. A
    refused request has its reason already."""
    if error.request is None or isinstance(error, _REFUSED):
        return ""
    if engine is not None and engine.entry is not None and engine.entry.is_afar:
        return f" (request {error.request}, in the log at {engine.entry.place})"
    return f" (request {error.request}: %djinn_log --request {error.request})"


def phrase(words: Sequence[str] | None) -> str | None:
    """Return the words of an expression that may have been quoted as a whole: `"step == 0"` or `step == 0`."""
    if not words:
        return None
    return unquoted(words[0]) if len(words) == 1 else " ".join(words)


def numbers_of(coefs: str | None) -> list[float]:
    """Return the numbers of --coefs. Raises UsageError."""
    try:
        return [] if coefs is None else [float(part) for part in coefs.split(",")]
    except ValueError:
        raise UsageError(f"--coefs is a list of numbers, as 0,0.5,1; {coefs!r} is none.") from None


def given(**values: Any) -> dict[str, Any]:
    """Return the given options; the call's own defaults apply to the rest."""
    return {name: value for name, value in values.items() if value is not None}


def refuse_others(args: Namespace, form: str, *heard: str) -> None:
    """Raise UsageError where a line has options that this `form` of its magic does not use. Options are identified by
    their destination. An option that names the form is allowed."""
    flags = [flag for dest, flag in args.given.items() if dest not in heard and flag != form]
    if flags:
        one = len(flags) == 1
        raise UsageError(
            f"{' and '.join(flags)} {'does' if one else 'do'} not go with {form}; leave {'it' if one else 'them'} out."
        )


def _flags_given(parser: argparse.ArgumentParser, args: Namespace) -> dict[str, str]:
    """Return the flags that a line gives, by destination."""
    actions = [action for action in parser._actions if getattr(args, action.dest) != action.default]
    return {action.dest: (action.option_strings or [str(action.metavar or action.dest)])[-1] for action in actions}


def _identifier(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not a name for a variable")
    return text


KEEP = option("-o", "--output", dest="keep", metavar="NAME", type=_identifier, help="keep the result in this variable")
SESSION = option("--session", metavar="NAME", help="another session than the present one")
POSITIONS = option(
    "--positions",
    metavar="P",
    help='such as -1, 0,4 or 2:5 (its end excluded), last, or a token, " Paris"; default all of the pass',
)
EFFECT = option("--effect", action="store_true", help="also measure the next token's distribution")
TOKEN = option(
    "--measure",
    action="append",
    metavar="TEXT",
    type=unquoted,
    help='--effect: this token too, such as " Mary"; of two also how far apart their logits are',
)
SO_FAR = option(
    "--continue",
    dest="so_far",
    metavar="NAME",
    help="go on with the grid in this variable, which was cut short; its finished cells are kept",
)
ADAPTER = option("--adapter", metavar="NAME", help="compute prompts with this adapter, which was added before")
BESIDE = option(
    "--beside",
    action="append",
    default=[],
    metavar="ENGINE",
    help="another engine of the model too, by its address or the number of a copy; may be given again",
)


def picture(text: str) -> Path:
    """Return the path of a figure's file, for argparse: a wrong one is refused before anything is computed."""
    from djinn_jupyter.widgets.chart import picture_path

    try:
        return picture_path(unquoted(text))
    except DjinnError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


HOVER = option("--hover", action="store_true", help="a plotly figure below, to read values under the pointer")
SAVE = option(
    "--save", type=picture, metavar="FILE", help=f"write the figure to a file that ends in {', '.join(PICTURES)}"
)
METRICS = option(
    "--metric",
    dest="metrics",
    type=unquoted,
    action="append",
    metavar="EXPR",
    help="such as \"logit(' Mary') - logit(' John')\"; may be given several times, each has a picture",
)


def option_strings(parser: argparse.ArgumentParser, *, with_value: bool = False) -> set[str]:
    actions = (a for a in parser._actions if not with_value or a.nargs != 0)
    return {name for action in actions for name in action.option_strings}


def as_typed(parser: argparse.ArgumentParser, said: str) -> str:
    """Rephrase an error in the words of this magic: parameters as its options, a notebook's session by its displayed
    name."""
    options = _by_parameter(parser)
    said = _PARAMETER.sub(lambda found: options.get(found[0], found[0]), said)
    return _NOTEBOOK.sub(lambda found: in_quotes(naming.label(found["name"])), said)


def _in_words(parser: argparse.ArgumentParser, said: str) -> str:
    _, too_much, words = said.partition("unrecognized arguments: ")
    if too_much:
        return f"{in_quotes(words)} has no place here; %{parser.prog}? says what can be given."
    return spelling.value_in_words(said)


def _by_parameter(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the options of a magic by the names of their Python parameters."""
    options = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}
    return options | {python: options[dest] for python, dest in _DESTS.items() if dest in options}


def _with_negatives(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Join `-3,-1` to the long option before it, because argparse would take it for an option."""
    taking = {name for name in option_strings(parser, with_value=True) if name.startswith("--")}
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in taking and _NEGATIVE.match(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _in_full(parser: argparse.ArgumentParser, words: Iterable[str]) -> list[str]:
    return spelling.in_full(words, parser._option_string_actions)


def _refuse_unknown(parser: argparse.ArgumentParser, words: Iterable[str]) -> None:
    known = sorted(option_strings(parser))
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and len(name) > 2 and not any(one.startswith(name) for one in known):
            if any(name in one.flags for one in settings_of(GivenSampling)):
                raise UsageError(f"{name} is of the sampling, which %djinn_run and %djinn_resume choose.")
            raise UsageError(
                f"There is no option {name}{spelling.closest_option(name, known, _by_parameter(parser)) or '.'}"
            )


def _leading_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """Yield the options before a prompt, without their values."""
    taking = option_strings(parser, with_value=True)
    left = iter(words)
    for word in left:
        if not word.startswith("-") or word == "--":
            return
        yield word
        if word in taking or (word.startswith("--") and "=" not in word and any(o.startswith(word) for o in taking)):
            next(left, None)


def _late_option(parser: argparse.ArgumentParser, prompt: str) -> str | None:
    """Return an option after the prompt, which is part of the prompt."""
    known = {name for name in option_strings(parser) if name.startswith("--")}
    return next((word for word in prompt.split() if word.partition("=")[0] in known), None)
