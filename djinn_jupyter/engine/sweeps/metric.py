"""The metric of a sweep: a number in the language of conditions, read from a row of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from djinn_jupyter.engine.interventions import conditions
from djinn_jupyter.engine.interventions.token_readings import of_token
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.errors import InvalidCondition

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
        condition = conditions.parse(text)
        strange = sorted(condition.names - set(conditions.TOKEN_FUNCTIONS))
        if strange:
            raise InvalidCondition(f"A metric reads logits, as in {EXAMPLE}; it knows no {strange[0]!r}.")
        condition.require_number()
        if not condition.names:
            raise InvalidCondition(f"The metric {text!r} reads no logit; write one such as {EXAMPLE}.")
        named = {tokenizer.token_id(text) for text in condition.tokens} | condition.token_ids
        tokens = tuple(named) if condition.names == {"logit"} else None
        return cls(condition=condition, tokenizer=tokenizer, tokens=tokens)

    def of(self, logits: Tensor, tokens: tuple[int, ...] | None = None) -> float:
        """Return its value from the logits of `tokens`, of all where that is None."""
        try:
            return float(self.condition.value(_Row(logits, self.tokenizer, tokens)))
        except OverflowError:
            raise InvalidCondition(f"The metric {self.condition.text[:40]!r} is too large for a number.") from None


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
