"""The verbs `run` and `resume`: in the session itself, or as a batch of rows in sessions of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast, overload

from msgspec.structs import replace

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.arrays import token_ids
from djinn_jupyter.client.batches import Batch, OnRow, are_prompts
from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.client.prompts import of_prompt
from djinn_jupyter.client.rules import SteeringRule
from djinn_jupyter.client.running import OnToken, RunRequest
from djinn_jupyter.client.stops import Stop
from djinn_jupyter.described import given_by_name, refuses, takes
from djinn_jupyter.errors import UsageError
from djinn_jupyter.sampling import DRAWN_AS_BEGUN, GivenSampling, require_drawn
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import as_read
from djinn_jupyter.wire.limits import LARGEST_SINGLE
from djinn_jupyter.wire.nouns import Mode, Sampling, StopIdentity
from djinn_jupyter.wire.rules import dosed


class Runs:
    """The runs of a session's handle."""

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
        `logits` of the Finished have a row for each position, from one pass over the line.

        A list of prompts, or `samples` of one, run at once, row i in a session of its own, "<session>/i", with this
        one's breakpoints and rules and with seed + i: the result is a list of stops. Rows of an earlier batch end,
        those of another notebook with `force` alone. `on_row` is called with the number and the stop of each row that
        ends. BatchEnded where some rows fail: its `rows` are the others; an interrupt pauses the rows that run, and
        BatchInterrupted has all.

        With `coefs`, a dose-response, each is a row in which the steering rule number `rule`, by default the only one,
        has that factor or coefficient, turned on; this session's own rule stays as it is.

        `exact` computes each row alone, bit for bit; `fast` computes a token of all rows in one pass, so that the last
        bits may differ, where nothing happens in that pass (no breakpoint, rule or watch).

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
        """Return the coefficients of a dose-response. Raises UsageError for what no row could have, before the rows of
        an earlier batch end."""
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
    ) -> Stop: ...

    @overload
    def resume(
        self,
        *,
        free: bool = ...,
        on_token: OnToken | None = ...,
        samples: int,
        seed: int = ...,
        mode: Mode | None = ...,
        force: bool = ...,
        on_row: OnRow | None = ...,
    ) -> list[Stop]: ...

    @refuses(GivenSampling, DRAWN_AS_BEGUN)
    @typed
    def resume(
        self,
        *,
        free: bool = False,
        on_token: OnToken | None = None,
        stop: StopIdentity | None = None,
        samples: int | None = None,
        seed: int | None = None,
        mode: Mode | None = None,
        force: bool = False,
        on_row: OnRow | None = None,
    ) -> Stop | list[Stop]:
        """Go on from the stop; `free` ignores breakpoints to the end. `stop` is the stop that the caller displays:
        IllegalMove where the session has moved on from it; likewise in `step`, `back`, `edit` and `revert`. With
        `samples` this session stays at its stop and as many forks of it go on, as rows of a batch (`run`), drawn with
        the run's own sampling from `seed` + i on; UsageError where the run draws no token. `mode` None is the run's
        own.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is", max_new_tokens=2, temperature=0.1)
        >>> [row.text for row in session.resume(samples=2, free=True)]
        [' Paris.', ' Paris.']
        """
        request = ask.Resume(session=self.name, free=free, stop=stop, mode=mode)
        if samples is None:
            if seed is not None or on_row is not None or force:
                raise UsageError("seed, on_row and force belong to samples: a run that goes on draws as it began.")
            return self._move(request, on_token)
        return self._batch(on_token=on_token, on_row=on_row, force=force).resume(request, samples, seed or 0)


def _of_rows(request: ask.Run, given: object) -> list[ask.Run]:
    """Return the request of each prompt. UsageError, by its number, for one that no engine would read."""
    if not are_prompts(given):
        return [_with_prompt(request, given)]
    as_read(request)  # what is wrong with every prompt is told without a number
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
