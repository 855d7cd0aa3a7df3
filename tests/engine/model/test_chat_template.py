"""Chat templates are code from a model's files: they render what transformers renders, refuse in their own words, and
take no more time and memory than they may."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from djinn_jupyter.engine.model.loading import chat_template
from djinn_jupyter.engine.model.loading.chat_template import MOST_CHARACTERS, ChatTemplate, Prompt, Template, renderer
from djinn_jupyter.engine.model.loading.limited_process import Limits
from djinn_jupyter.errors import EngineError, NoTokenizer, UsageError
from tests.engine.model.test_tokenizer import byte_level
from tests.waiting import SECONDS

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}{{ eos_token }}<reply>"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MAX = "{% set s = namespace(s='xx') %}{% for i in range(60) %}{% set s.s = s.s + s.s %}{% endfor %}{{ s.s }}"


@pytest.fixture
def made() -> Iterator[list[ChatTemplate]]:
    templates: list[ChatTemplate] = []
    yield templates
    for one in templates:
        one.close()


def of(template: object, made: list[ChatTemplate]) -> ChatTemplate:
    tokenizer = byte_level()
    tokenizer.chat_template = template  # type: ignore[assignment]
    made.append(ChatTemplate(tokenizer))
    return made[-1]


def said(template: str, text: str = "The") -> str:
    """Return the sentence with which a template fails, asked in this process."""
    with pytest.raises(UsageError) as failed:
        renderer(Template(template=template, special_tokens={}))(Prompt(text=text))
    return str(failed.value)


def test_a_chat_is_rendered_as_transformers_renders_it(made: list[ChatTemplate]) -> None:
    named = {"default": PLAIN, "tool_use": "tools"}
    for template in (PLAIN, named):
        one = of(template, made)
        for text in ("The", " a \n", "Grüße \U0001f30d", "x" * 300_000, ""):
            turn = [{"role": "user", "content": text}]
            tokenizer = byte_level()
            tokenizer.chat_template = template  # type: ignore[assignment]
            expected = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
            assert one.render(text) == expected
            assert "<|end|><reply>" in expected


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Roles\nmust alternate.') }}", "refuses this prompt: Roles must alternate."),
        ("{{ raise_exception('\x1b[31m') }}", "refuses this prompt: [31m."),
        ("{{ raise_exception() }}", "TypeError"),
        ("{{ user.name }}", "UndefinedError: 'user' is undefined"),
        ("{{ 'x' | nosuch }}", "in line 1 (TemplateAssertionError: No filter named 'nosuch')"),
        ("a\n{% for x in %}", "in line 2 (TemplateSyntaxError: Expected an expression"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'etc' %}", "no loader"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
        (f"{{{{ 'x' * {MOST_CHARACTERS + 1} }}}}", "makes 16,000,001 characters"),
        ("{{ '\\ud800' }}", "UnicodeEncodeError"),
    ],
)
def test_a_template_that_fails_is_one_sentence_with_its_words(template: str, words: str) -> None:
    sentence = said(template)
    assert sentence.startswith("The model's chat template ")
    assert words in sentence
    assert sentence.isprintable()
    assert len(sentence) < 600


def test_where_there_is_no_template_the_sentence_says_so(made: list[ChatTemplate]) -> None:
    with pytest.raises(NoTokenizer, match="list of token ids"):
        ChatTemplate(None).render("The")
    for nothing in (None, "", {}):
        with pytest.raises(UsageError, match="no chat template"):
            of(nothing, made).render("The")
    with pytest.raises(UsageError, match="multiple chat templates with no default"):
        of({"tool_use": PLAIN}, made).render("The")
    with pytest.raises(UsageError, match="fails"):
        of(7, made).render("The")
    with pytest.raises(UsageError, match="fails"):
        of("\ud800", made).render("The")


def test_a_template_takes_no_more_memory_than_it_may(made: list[ChatTemplate], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "LIMITS", Limits(seconds=SECONDS, memory=2**27))
    one = of("{% if messages[0].content == 'all' %}" + MAX + "{% endif %}" + PLAIN, made)
    with pytest.raises(UsageError, match=r"had not rendered this prompt within 128 MiB of main memory; run it without"):
        one.render("all")
    assert one.render("The").endswith("<reply>")


def test_a_template_takes_no_more_time_than_it_may(made: list[ChatTemplate], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "LIMITS", Limits(seconds=0.2, memory=2**29))
    one = of("{% if messages[0].content == 'all' %}" + LOOPS + "{% endif %}" + PLAIN, made)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"had not rendered this prompt within 0\.2 s"):
            one.render("all")
    assert one.render("The").endswith("<reply>")


def test_a_template_is_broken_off_by_the_end(made: list[ChatTemplate]) -> None:
    one, ends = of("{% if messages[0].content == 'all' %}" + LOOPS + "{% endif %}" + PLAIN, made), []
    one.render("The")

    def render() -> None:
        with pytest.raises(EngineError, match=r"ended|stopped"):  # where the end comes first
            one.render("all")
        ends.append(True)

    thread = threading.Thread(target=render)
    thread.start()
    one.close()
    thread.join(SECONDS)
    assert ends == [True]
    with pytest.raises(EngineError, match="stopped"):
        one.render("The")
