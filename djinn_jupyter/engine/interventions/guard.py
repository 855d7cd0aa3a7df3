"""The guard of a rule: a condition that says at which rows of a value the rule applies. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from djinn_jupyter.engine.interventions.conditions import Condition
from djinn_jupyter.engine.interventions.site_scope import Texts, TokenIds, rows_meeting
from djinn_jupyter.engine.interventions.site_value import SiteValue
from djinn_jupyter.wire.sites import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """`text_of` and `id_of` are the tokenizer's."""

    condition: Condition
    text_of: Texts
    id_of: TokenIds

    @property
    def text(self) -> str:
        return self.condition.text

    def holding(self, site_value: SiteValue, site: Site, rows: Sequence[int]) -> list[int]:
        """Return those of the rows where the condition holds of the value at `site`. Raises InvalidCondition where it
        cannot be evaluated."""
        return list(rows_meeting(self.condition, site_value, site, self.text_of, self.id_of, rows))
