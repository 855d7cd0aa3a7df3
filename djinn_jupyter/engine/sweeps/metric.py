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
    """`condition` reads nothing but the logits of tokens."""

    condition: conditions.Condition
    tokenizer: TokenText

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
        return cls(condition=condition, tokenizer=tokenizer)

    def of(self, logits_V: Tensor) -> float:
        try:
            return float(self.condition.value(_Row(logits_V, self.tokenizer)))
        except OverflowError:
            raise InvalidCondition(f"The metric {self.condition.text[:40]!r} is too large for a number.") from None


@dataclass(frozen=True, slots=True)
class _Row:
    logits_V: Tensor
    tokenizer: TokenText

    def read(self, name: str) -> Any:
        raise InvalidCondition(f"A metric knows no {name!r}.")

    def of_token(self, name: str, token: str | int) -> float:
        return of_token(name, self.logits_V, self.tokenizer.token_id(token) if isinstance(token, str) else token)
