"""Metrics: numbers in the language of conditions, read from a row of logits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.passes import conditions
from djinn_jupyter.engine.passes.conditions import of_token
from djinn_jupyter.errors import InvalidCondition, NoTokenizer, UsageError

Values = tuple[float, ...]  # one for each metric
EXAMPLE = "logit(' Rome') - logit(' Paris')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`condition` reads nothing but the logits of tokens: those of `tokens` alone, None where it needs all."""

    condition: conditions.Condition
    tokenizer: TokenText
    tokens: tuple[int, ...] | None

    @classmethod
    def parse(cls, text: str, tokenizer: TokenText) -> Metric:
        """Return the metric in `text`. Raises InvalidCondition where it is no number of the logits."""
        condition = conditions.parse(text, noun="metric")
        strange = sorted(condition.names - set(conditions.TOKEN_FUNCTIONS))
        if strange:
            raise InvalidCondition(f"A metric reads logits, as in {EXAMPLE}; it knows no {strange[0]!r}.")
        condition.require_number()
        if not condition.names:
            raise InvalidCondition(f"The metric {text!r} reads no logit; write one such as {EXAMPLE}.")
        named = {_token(text, tokenizer) for text in condition.tokens} | condition.token_ids
        tokens = tuple(named) if condition.names == {"logit"} else None
        return cls(condition=condition, tokenizer=tokenizer, tokens=tokens)

    def size(self, logits_V: Tensor) -> float:
        """Return the largest of the logits that it reads, 0 where it reads probabilities or ranks."""
        return 0.0 if self.tokens is None else float(logits_V[list(self.tokens)].abs().max())

    def of(self, logits: Tensor, tokens: tuple[int, ...] | None = None) -> float:
        """Return its value from the logits of `tokens`, of all where that is None."""
        try:
            return float(self.condition.value(_Row(logits, self.tokenizer, tokens)))
        except OverflowError:
            raise InvalidCondition(f"The metric {self.condition.text[:40]!r} is too large for a number.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """`tokens` are those whose logits any of them reads, None where one needs all."""

    each: tuple[Metric, ...]
    tokens: tuple[int, ...] | None

    @classmethod
    def parse(cls, texts: Sequence[str], tokenizer: TokenText) -> Metrics:
        """Return the metrics in `texts`. Raises InvalidCondition."""
        each = tuple(Metric.parse(text, tokenizer) for text in texts)
        named = [one.tokens for one in each if one.tokens is not None]
        tokens = tuple(dict.fromkeys(itertools.chain.from_iterable(named))) if len(named) == len(each) else None
        return cls(each=each, tokens=tokens)

    def of(self, logits: Tensor, tokens: tuple[int, ...] | None = None) -> Values:
        """Return each value from the logits of `tokens`, of all where that is None."""
        return tuple(metric.of(logits, tokens) for metric in self.each)

    def sizes(self, logits_V: Tensor) -> Values:
        """Return the largest logit that each reads, 0 where it reads probabilities or ranks."""
        return tuple(metric.size(logits_V) for metric in self.each)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(metric.condition.text for metric in self.each)


def _token(text: str, tokenizer: TokenText) -> int:
    """Return the one token that reads `text`. Raises InvalidCondition where none does; NoTokenizer."""
    try:
        return tokenizer.token_id(text)
    except NoTokenizer:
        raise
    except UsageError as error:
        raise InvalidCondition(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Row:
    logits: Tensor
    tokenizer: TokenText
    tokens: tuple[int, ...] | None

    def read(self, name: str) -> Any:
        raise InvalidCondition(f"A metric knows no {name!r}.")

    def of_token(self, name: str, token: str | int) -> float:
        number = self.tokenizer.token_id(token) if isinstance(token, str) else token
        return of_token(name, self.logits, number if self.tokens is None else self.tokens.index(number))
