"""Prompts as users give them (texts or token ids, also in a file), their tokens, and the verbs `run` and `resume`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Final, Literal, cast, overload

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from djinn_jupyter.api.arguments import typed
from djinn_jupyter.api.arrays import token_ids
from djinn_jupyter.api.batches import Batch, OnRow, OnToken, RunRequest, are_prompts
from djinn_jupyter.api.rules import SteeringRule
from djinn_jupyter.api.stops import Stop
from djinn_jupyter.errors import MessageTooLarge, NoTokenizer, UsageError
from djinn_jupyter.files import contents_of
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.settings import (
    OF_A_RUN,
    GivenDrawing,
    GivenSampling,
    given_by_name,
    refuses,
    require_drawn,
    takes,
)
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import as_read
from djinn_jupyter.wire.edits import dosed
from djinn_jupyter.wire.nouns import Mode, Sampling, SamplingChanges, StopIdentity
from djinn_jupyter.wire.request_base import LARGEST_SINGLE, MOST_TOKENS

FIELDS: Final = ("tokens", "text", "prompt")
LISTS: Final = {"prompt": "a list of texts or of lists of token ids", "pair": "a list of pairs (clean, corrupted)"}


def given_prompts(prompts: object) -> Iterator[object]:
    """Yield the prompts of a list, of any iterable, or of the file at a pathlib.Path. Raises UsageError."""
    if isinstance(prompts, Path):
        for where, value in records(prompts, "prompt"):
            yield value if prompts.suffix not in (".json", ".jsonl") else _prompt(where, value)
    else:
        yield from _one_by_one(prompts)


def of_how_many(prompts: object) -> str:
    """Return " of 12" for a list of prompts; empty where only reading them would count them."""
    try:
        return f" of {len(prompts):,}" if isinstance(prompts, Sized) else ""
    except TypeError:  # an array without an axis; reading it raises the refusal
        return ""


def _one_by_one(prompts: Any) -> Iterator[object]:
    try:
        if isinstance(prompts, str | bytes | Mapping):
            raise TypeError
        return iter(prompts)
    except TypeError:
        raise UsageError(
            f"Prompts are {LISTS['prompt']}, or the path of a file of them (pathlib.Path); this is one "
            f"{type(prompts).__name__}."
        ) from None


def tokenized(channel: Channel, prompts: Iterable[object]) -> Iterator[tuple[int, ...]]:
    """Yield the token ids of each prompt. Raises UsageError, with the prompt's number, for an empty one."""
    for number, prompt in enumerate(prompts):
        with of_prompt(number):
            tokens = _tokens(channel, prompt)
        if not tokens:
            raise UsageError(f"Prompt {number} (counted from 0) has no tokens; leave it out.")
        if len(tokens) > MOST_TOKENS:
            raise UsageError(
                f"Prompt {number} (counted from 0) has {len(tokens):,} tokens, and the most is {MOST_TOKENS:,}."
            )
        yield tokens


@contextmanager
def of_prompt(number: int) -> Iterator[None]:
    """Prefix a refusal with the number of the prompt, one of many."""
    try:
        yield
    except NoTokenizer:
        raise  # the same for every prompt
    except (UsageError, MessageTooLarge) as error:
        raise type(error)(f"Prompt {number} (counted from 0): {error}") from None


def _tokens(channel: Channel, prompt: object) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return ask_for(channel, ask.Tokenize(text=prompt)).tokens
    return token_ids(prompt)


def records(path: Path, of: str) -> list[tuple[str, Any]]:
    """Return the records of a file (`of` is "prompt" or "pair"), each with its place in words: lines, or JSON for
    `.jsonl` (one a line) and `.json` (a list)."""
    try:
        read = contents_of(path).decode("utf-8-sig")  # editors on Windows begin a file with a byte order mark
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8.") from None
    text = StringIO(read, newline=None).read()  # universal newlines, as in open()
    found = _listed(path, text, of) if path.suffix == ".json" else _by_line(path, text)
    if not found:
        raise UsageError(f"{path} has no {of}s; write one a line.")
    return found


def _by_line(path: Path, text: str) -> list[tuple[str, Any]]:
    lines = [(f"line {number} of {path}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return lines if path.suffix != ".jsonl" else [(where, _read(where, line)) for where, line in lines]


def _listed(path: Path, text: str, of: str) -> list[tuple[str, Any]]:
    found = _read(str(path), text) if text.strip() else []
    if not isinstance(found, list):
        raise UsageError(f"{path} is not {LISTS[of]}.")
    return [(f"{of} {number} of {path}", one) for number, one in enumerate(found)]


def _read(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}.") from None


def _prompt(where: str, value: Any) -> Any:
    named = next((value[name] for name in FIELDS if name in value), None) if isinstance(value, dict) else value
    if not isinstance(named, str | list):
        raise UsageError(
            f"{where} is neither a text, nor a list of token ids, nor an object with one of them as {FIELDS}."
        )
    return named


class Runs:
    """The verbs of a session that run prompts."""

    name: str
    _channel: Channel
    _logits: Literal["last", "all"]

    def _move(self, request: RunRequest, on_token: OnToken | None = None) -> Stop:
        raise NotImplementedError

    def rules(self) -> tuple[SteeringRule, ...]:
        raise NotImplementedError

    def _batch(self, **settings: Any) -> Batch:
        raise NotImplementedError

    @overload
    def run(
        self, prompt: list[str] | list[list[int]], *, samples: int | None = None, **settings: Any
    ) -> list[Stop]: ...

    @overload
    def run(self, prompt: object = None, *, samples: None = None, **settings: Any) -> Stop: ...

    @overload
    def run(self, prompt: object = None, *, samples: int, **settings: Any) -> list[Stop]: ...

    @takes(GivenSampling)
    @typed
    def run(
        self,
        prompt: object = None,
        *,
        max_new_tokens: int = 20,
        stop: str | Iterable[str] = (),
        ignore_eos: bool = False,
        extend: bool = False,
        chat: bool = False,
        free: bool = False,
        samples: int | None = None,
        coefs: Sequence[float] | None = None,
        rule: int | None = None,
        force: bool = False,
        logits: Literal["last", "all"] = "last",
        mode: Mode = "exact",
        on_token: OnToken | None = None,
        on_row: OnRow | None = None,
        **sampling: Any,
    ) -> Stop | list[Stop]:
        """Run a prompt (text or token ids) until a breakpoint or the end. `extend` continues the present tokens; the
        prompt may then be omitted. `on_token` is called for each new token, in this thread. With `logits` "all" the
        Finished has `logits` with a row for each position, from one pass over all tokens.

        A list of prompts, or `samples` of one, run at once, row i in a session of its own, "<session>/i", with this
        one's breakpoints and rules and with seed + i: the result is a list of stops. Rows of an earlier batch end, rows
        of another notebook only with `force`. `on_row` is called with the number and the stop of each row that ends.
        BatchEnded where some rows fail: its `rows` has the others. An interrupt pauses the running rows, and
        BatchInterrupted has all.

        `coefs` makes a dose-response: each coefficient is a row in which the steering rule number `rule`, by default
        the only one, is on with that factor or coefficient. This session's own rule stays unchanged.

        `exact` computes each row alone, bit for bit. `fast` computes one token of all rows in one pass, where that pass
        has no breakpoint, rule or watch; the last bits may differ.

        >>> session.run("The capital of France is", max_new_tokens=2).text
        ' Paris.'
        >>> rows = session.run(["The capital of France is", "The capital of Italy is"], max_new_tokens=1)
        >>> [row.text for row in rows]
        [' Paris', ' Rome']
        >>> here = session.steer("resid_post.4", dj.scale(1.0), -1, on="prompt")
        >>> rows = session.run("The capital of France is", coefs=[0, 0.5, 1], max_new_tokens=1)
        >>> rows[2].text, rows[2].rules[0].what
        (' Paris', 'scale 1 at resid_post.4, position -1, in the prompt')

        UsageError; PromptTooLong; SlabFull. The sampling:
        """
        drawing = given_by_name(GivenSampling, sampling)
        several = samples if samples is not None and samples > 1 else None
        require_drawn({**drawing, "samples": several}, self._channel.welcome.model.generation_defaults)
        request = ask.Run(
            session=self.name,
            max_new_tokens=max_new_tokens,
            sampling=Sampling(**drawing),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=ignore_eos,
            chat=chat,
            extend=extend,
            free=free,
            mode=mode,
        )
        if rule is not None and coefs is None:
            raise UsageError("rule names the rule that has coefs; give these too.")
        if samples is None and coefs is None and not are_prompts(prompt):
            if on_row is not None or force:
                raise UsageError("on_row and force are of the rows of a batch; give a list of prompts, or samples.")
            self._logits = logits
            return self._move(_with_prompt(request, prompt), on_token)
        batch = self._batch(on_token=on_token, on_row=on_row, force=force, all_logits=logits == "all", rule=rule)
        doses = (None,) if coefs is None else self._doses(coefs, rule)
        return batch.run(_of_rows(request, prompt), 1 if samples is None else samples, doses)

    def _doses(self, coefs: Sequence[float], rule: int | None) -> tuple[float, ...]:
        """Return the coefficients of a dose-response. UsageError for invalid ones, before an earlier batch ends."""
        dosed(self.rules(), rule)
        strange = next((coef for coef in coefs if not abs(coef) <= LARGEST_SINGLE), None)
        if strange is not None:
            raise UsageError(f"A coefficient is a number that is finite in float32, and {strange} is none.")
        return tuple(coefs)

    @overload
    def resume(
        self,
        *,
        free: bool = ...,
        on_token: OnToken | None = ...,
        stop: StopIdentity | None = ...,
        mode: Mode | None = ...,
        samples: None = None,
        **sampling: Any,
    ) -> Stop: ...

    @overload
    def resume(
        self,
        *,
        free: bool = ...,
        on_token: OnToken | None = ...,
        samples: int,
        mode: Mode | None = ...,
        force: bool = ...,
        on_row: OnRow | None = ...,
        **sampling: Any,
    ) -> list[Stop]: ...

    @refuses(GivenSampling, OF_A_RUN)
    @takes(GivenDrawing)
    @typed
    def resume(
        self,
        *,
        free: bool = False,
        on_token: OnToken | None = None,
        stop: StopIdentity | None = None,
        samples: int | None = None,
        mode: Mode | None = None,
        force: bool = False,
        on_row: OnRow | None = None,
        **sampling: Any,
    ) -> Stop | list[Stop]:
        """Continue from the stop; `free` ignores breakpoints to the end. `stop` is the stop that the caller displays:
        IllegalMove where the session has moved on from it; likewise in `step`, `back`, `edit` and `revert`. `mode` None
        is the run's own. With `samples` this session stays at its stop and as many forks continue, as rows of a batch
        (`run`), with the seeds `seed` + i, 0 by default; UsageError for a run without sampling.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is", max_new_tokens=2)
        >>> [row.text for row in session.resume(samples=2, temperature=0.1, free=True)]
        [' Paris.', ' Paris.']

        The sampling of what is left of the run; what is not given stays as it was. Going back to this stop brings the
        earlier settings back. UsageError for settings of a run that draws no token.
        """
        request = ask.Resume(session=self.name, free=free, stop=stop, mode=mode, sampling=changed_sampling(sampling))
        if samples is None:
            if on_row is not None or force:
                raise UsageError("on_row and force belong to samples: a run that goes on has no rows.")
            return self._move(request, on_token)
        return self._batch(on_token=on_token, on_row=on_row, force=force).resume(request, samples)


def changed_sampling(given: Mapping[str, Any]) -> SamplingChanges | UnsetType:
    """Return the settings of sampling that a run goes on with, UNSET without any. Raises UsageError."""
    found = given_by_name(GivenDrawing, given)
    return SamplingChanges(**found) if found else UNSET


def _of_rows(request: ask.Run, given: object) -> list[ask.Run]:
    """Return the request of each prompt. UsageError, with the prompt's number, for one that no engine would read."""
    if not are_prompts(given):
        return [_with_prompt(request, given)]
    as_read(request)  # errors that apply to every prompt have no number
    found = []
    for number, prompt in enumerate(cast(Sequence[object], given)):
        with of_prompt(number):
            found.append(_with_prompt(request, prompt))
            as_read(found[-1])
    return found


def _with_prompt(request: ask.Run, prompt: object) -> ask.Run:
    if request.chat and not isinstance(prompt, str):
        raise UsageError("chat puts a text into the model's template: give the prompt as a text, or leave chat out.")
    if prompt is None:
        return request
    return replace(request, text=prompt) if isinstance(prompt, str) else replace(request, tokens=token_ids(prompt))
