"""Result files as rows of text: the measured fields, and the unmeasured ones with their reasons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LONGEST_LIST = 12
MOST_ROWS = 60
NAMING = ("", "claim", "trial", "layer", "kv")  # columns that tell one row from another; they come first
CLAIM = ("claim", "verdict", "value", "unit", "repetitions")
TRIAL = (
    "trial layer token_accuracy bitwise_equal stopped_in_decode layers_run_before_stop layers_run_after_resume "
    "os_overhead_percent checkpoint_time_ms restore_time_ms"
).split()


def rows(fields: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every scalar of a file by its dotted path; long lists by their length. Leaves out the keys that the report
    shows elsewhere (`reasons`, `arithmetic`, `summary_table`)."""
    for key, value in fields.items():
        name = f"{path}{key}"
        if key == "claims":
            yield from _claims(value)
            continue
        if key in ("reasons", "arithmetic", "summary_table"):
            continue
        if isinstance(value, Mapping):
            yield from rows(value, f"{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield name, _list(value)
        else:
            yield name, "not set" if value is None and name.startswith("config.") else spelled(value)


def grids(fields: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield title, head and rows of each table in a file: trials by layer, latencies by layer, the comparison of
    sides."""
    accuracy, summary = fields.get("token_accuracy"), fields.get("summary_table")
    if isinstance(accuracy, Mapping) and accuracy.get("entries"):
        yield _titled("Token accuracy", accuracy["entries"]), *_columns(accuracy["entries"], TRIAL)
    if isinstance(fields.get("results"), Sequence) and fields["results"]:
        named = fields["results"][0]
        yield (
            _titled("By layer", fields["results"]),
            *_columns(fields["results"], sorted(named, key=lambda column: column not in NAMING)),
        )
    if isinstance(fields.get("claims"), Sequence):
        yield "The original, claim by claim", *_columns(fields["claims"], CLAIM)
    if fields.get("ways"):
        yield from _agents(fields["ways"])
    if isinstance(summary, Mapping):
        sides = list(next(iter(summary.values())))
        yield (
            "Side by side",
            ["", *sides],
            [[row, *(spelled(cells[s]) for s in sides)] for row, cells in summary.items()],
        )


def _claims(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the sentence of each claim, and its answer."""
    for claim in found:
        interval = claim["interval"]
        between = "" if interval is None else f" ({spelled(interval['low'])} to {spelled(interval['high'])})"
        value = "" if claim["value"] is None else f" {spelled(claim['value'])}{between} {claim['unit']};"
        why = f" {claim['reason']}." if claim["reason"] else ""
        yield f"{claim['claim']}. {claim['sentence']}", f"{claim['verdict']};{value} {claim['measured']}.{why}"


def _agents(ways: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield the table of the ways in which agents were kept, with the interval of each percentile."""
    percents = ("p50", "p90", "p99")
    head = ["way", "agents", "served", "bits equal", *(f"first token {p}, ms" for p in percents), "per token p50, ms"]
    cells = [
        [
            one["way"],
            spelled(one["agents"]),
            spelled(one["agents_served"]),
            spelled(one["bits_equal_alone"]),
            *(_interval(one["first_token_ms"], percent) for percent in percents),
            _interval(one["token_ms"], "p50"),
        ]
        for one in ways
    ]
    yield "Time to the first token after a pause", head, cells


def _interval(found: Mapping[str, Any] | None, percent: str) -> str:
    if found is None:
        return spelled(None)
    one = found[percent]
    return f"{one['value']:.3g} [{one['low']:.3g}, {one['high']:.3g}]"


def _titled(title: str, found: Sequence[Any]) -> str:
    return title if len(found) <= MOST_ROWS else f"{title}: the first {MOST_ROWS} of {len(found)} in the file"


def _columns(found: Sequence[Mapping[str, Any]], head: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    return list(head), [[spelled(one.get(key)) for key in head] for one in found[:MOST_ROWS]]


def sums(written: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the `arithmetic` sentences of the files, such as demand against capacity."""
    return [line for fields in written.values() for line in fields.get("arithmetic", ())]


def unmeasured(written: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each unmeasured field, as file and field, with its reason; entries of a list with one reason are merged."""
    for name, fields in written.items():
        alike = Counter((re.sub(r"\[\d+\]", "[]", field), why) for field, why in fields.get("reasons", {}).items())
        for (field, why), count in alike.items():
            yield f"{name}: {field}", why if count == 1 else f"{why} ({count} times)"


def spelled(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _list(values: Sequence[Any]) -> str:
    if len(values) > LONGEST_LIST or any(isinstance(value, (Mapping, list)) for value in values):
        return f"{len(values)} entries"
    return ", ".join(spelled(value) for value in values) or "none"
