"""The verbs `run` and `resume`: in the session itself, or as a batch of rows in sessions of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, overload

from msgspec.structs import replace

from djinn_jupyter.client.arrays import token_ids
from djinn_jupyter.client.batches import Batch, OnRow, are_prompts
from djinn_jupyter.client.running import OnToken
from djinn_jupyter.client.stops import Stop
from djinn_jupyter.described import given_by_name, takes
from djinn_jupyter.errors import UsageError
from djinn_jupyter.sampling import GivenSampling
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Mode, Sampling, StopIdentity


class Runs:
    """The runs of a session's handle."""

    name: str
    _logits: Literal["last", "all"]

    def _move(self, request: ask.Request, on_token: OnToken | None = None) -> Stop:
        raise NotImplementedError

    def _batch(self, on_token: OnToken | None, on_row: OnRow | None) -> Batch:
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
        one's breakpoints and rules and with seed + i: the result is a list of stops. Rows of an earlier batch end.
        `on_row` is called with the number and the stop of each row that ends. BatchEnded where some rows fail: its
        `rows` are the others; an interrupt pauses the rows that run, and BatchInterrupted has all.

        `exact` computes each row alone, bit for bit; `fast` computes a token of all rows in one pass, so that the last
        bits may differ, where nothing happens in that pass (no breakpoint, rule or watch). The sampling:
        """
        if logits not in ("last", "all"):
            raise UsageError(f"logits is 'last' or 'all', not {logits!r}.")
        request = ask.Run(
            session=self.name,
            max_new_tokens=max_new_tokens,
            sampling=Sampling(**given_by_name(GivenSampling, sampling)),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=ignore_eos,
            chat=chat,
            extend=extend,
            free=free,
            mode=mode,
        )
        if logits not in ("last", "all"):
            raise UsageError(f"logits is 'last' or 'all', not {logits!r}.")
        if samples is None and not are_prompts(prompt):
            if on_row is not None:
                raise UsageError("on_row is told of the rows of a batch; give a list of prompts, or samples.")
            self._logits = logits
            return self._move(_with_prompt(request, prompt), on_token)
        if logits == "all":
            raise UsageError("Logits of all positions are those of one prompt; leave them out of a batch.")
        prompts = [_with_prompt(request, one) for one in _prompts(prompt)]
        return self._batch(on_token, on_row).run(prompts, 1 if samples is None else samples)

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
        on_row: OnRow | None = ...,
    ) -> list[Stop]: ...

    def resume(
        self,
        *,
        free: bool = False,
        on_token: OnToken | None = None,
        stop: StopIdentity | None = None,
        samples: int | None = None,
        seed: int | None = None,
        mode: Mode | None = None,
        on_row: OnRow | None = None,
    ) -> Stop | list[Stop]:
        """Go on from the stop; `free` ignores breakpoints to the end. `stop` is the stop that the caller displays:
        IllegalMove where the session has moved on from it; likewise in `step`, `back`, `edit` and `revert`. With
        `samples` this session stays at its stop and as many forks of it go on, as rows of a batch (`run`). `mode` None
        is the run's own."""
        request = ask.Resume(session=self.name, free=free, stop=stop, mode=mode)
        if samples is None:
            if seed is not None or on_row is not None:
                raise UsageError("seed and on_row belong to samples: a run that goes on draws as it began.")
            return self._move(request, on_token)
        return self._batch(on_token, on_row).resume(request, samples, seed or 0)


def _prompts(given: object) -> list[object]:
    return list(given) if isinstance(given, list | tuple) and are_prompts(given) else [given]


def _with_prompt(request: ask.Run, prompt: object) -> ask.Run:
    if prompt is None:
        return request
    return replace(request, text=prompt) if isinstance(prompt, str) else replace(request, tokens=token_ids(prompt))
