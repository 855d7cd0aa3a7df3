"""All claims judged on the runs in a folder, as the fields of claims.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from djinn_evaluation.claims.claim import StatedClaim
from djinn_evaluation.claims.judgement import VERDICTS, Judgement
from djinn_evaluation.claims.results import NotMeasured, Results
from djinn_evaluation.claims.table import CLAIMS


def answers(results: Results, claims: Iterable[StatedClaim] = CLAIMS) -> dict[str, Any]:
    """Return the claims with their verdicts, and how many have each."""
    rows = [_row(claim, claim.judged(results), results) for claim in claims]
    counts = Counter(row["verdict"] for row in rows)
    return {"summary": {name: counts[name] for name in VERDICTS}, "claims": rows}


def _row(claim: StatedClaim, found: Judgement, results: Results) -> dict[str, Any]:
    interval = None if found.interval is None else found.interval.fields()
    return {
        "claim": claim.number,
        "sentence": claim.sentence,
        "measured": claim.measured,
        "verdict": found.verdict,
        "value": found.value,
        "unit": claim.unit,
        "interval": interval,
        "repetitions": found.repetitions,
        "reason": found.reason,
        "needs": claim.needs if claim.needs is not None else claim.told_by,
        "beside": _beside(claim, results),
        "reads": dict(claim.reads),
    }


def _beside(claim: StatedClaim, results: Results) -> dict[str, Any]:
    """Return the fields that stand beside the value, as far as they were measured."""
    told = {}
    for name, spelled in claim.shows.items():
        try:
            told[name] = results.read(spelled)
        except NotMeasured:
            continue
    return told
