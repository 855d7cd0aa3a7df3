"""A model's chat template, which is code from its files: rendered in a process with limits of time and memory. The
sandbox of Jinja keeps a template from files and sockets, not from loops and long strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.engine.model.loading.limited_process import LimitedProcess, Limits, serve
from djinn_jupyter.errors import NoTokenizer, UsageError
from djinn_jupyter.wire.base import Frozen

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LIMITS: Final = Limits(seconds=10.0, memory=2**29)
MOST_CHARACTERS: Final = 16_000_000  # of a rendered prompt: four for each of the longest accepted text
MOST_WORDS: Final = 400  # characters of a template's own message
REMEDY: Final = "run it without --chat, or mend the model's template"
_BASE: Final = "transformers.tokenization_utils_base"  # the owner of this rendering


class Template(Frozen, frozen=True):
    """The template, and the names of special tokens that it may use; the first message."""

    template: str
    special_tokens: dict[str, Any]


class Prompt(Frozen, frozen=True):
    text: str


class Rendered(Frozen, frozen=True, tag="Rendered"):
    text: str


class ChatTemplate:
    """The template of a tokenizer, or its absence."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._process: LimitedProcess | None = None

    def render(self, text: str) -> str:
        """Return `text` as one user's turn. UsageError where there is no template, or it refuses, fails or exceeds the
        limits; EngineError where its process ends."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise NoTokenizer("There is no tokenizer for this model; give a list of token ids instead of text.")
        if not has_chat_template(tokenizer):
            raise UsageError("This model's tokenizer has no chat template; run the prompt without --chat.")
        if type(tokenizer).apply_chat_template.__module__ != _BASE:  # its own code, which the user has allowed
            return str(tokenizer.apply_chat_template(_turn(text), add_generation_prompt=True, tokenize=False))
        if self._process is None:
            words = {"does": "renders chats", "done": "rendered this prompt", "remedy": REMEDY}
            self._process = LimitedProcess(__name__, _template_of(tokenizer), LIMITS, **words)
        return self._process.ask(Prompt(text=text), Rendered).text

    def close(self) -> None:
        """End the process, even during a prompt. May be called from any thread."""
        if self._process is not None:
            self._process.close()


def has_chat_template(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def _template_of(tokenizer: PreTrainedTokenizerBase) -> Template:
    try:
        template = tokenizer.get_chat_template()
        template.encode()
    except Exception as error:  # noqa: BLE001  several templates and no default, or what is no text
        raise _failed(error) from None
    return Template(template=template, special_tokens=dict(tokenizer.special_tokens_map))


def _turn(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def renderer(given: Template) -> Callable[[Prompt], Rendered]:
    """Return the function that renders prompts by a template. It raises UsageError where the template fails."""
    from transformers.utils.chat_template_utils import render_jinja_template  # half a second, only in the process

    def answer(asked: Prompt) -> Rendered:
        try:
            rendered: Any = render_jinja_template(  # the texts, and values that are not text
                [_turn(asked.text)], chat_template=given.template, add_generation_prompt=True, **given.special_tokens
            )
            text: str = rendered[0][0]
            text.encode()  # a lone surrogate is not text
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  a template raises anything
            raise _failed(error) from None
        if len(text) > MOST_CHARACTERS:
            raise UsageError(f"The model's chat template makes {len(text):,} characters of this prompt; {REMEDY}.")
        return Rendered(text=text)

    return answer


def _failed(error: Exception) -> UsageError:
    """Return the error with the template's own words, or with those of its fault, as one sentence."""
    said = "".join(one if one.isprintable() else " " for one in str(error))
    words = " ".join(said.split())[:MOST_WORDS].rstrip(".")
    kind = type(error).__name__
    if kind == "TemplateError":  # its raise_exception
        return UsageError(f"The model's chat template refuses this prompt: {words or 'without a reason'}.")
    line = f" in line {line}" if (line := getattr(error, "lineno", None)) else ""
    return UsageError(f"The model's chat template fails{line} ({kind}: {words}); {REMEDY}.")


if __name__ == "__main__":
    serve(Template, Prompt, renderer)
