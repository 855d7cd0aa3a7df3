"""report.html and report.md, written from the result files alone: they contain nothing that is not in a file."""

from __future__ import annotations

import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from djinn_evaluation.course import REPORTS, Course, now
from djinn_evaluation.machine import machine

WIDTH, HEIGHT = 680, 220
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 14, 34
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito: for colour-blind eyes too


def lines(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    level: tuple[str, float] | None = None,
    marks: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Draw curves of (x, y), a dashed `level` such as a capacity, and rows of `marks` on the x axis, with a legend."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    named = {} if marks is None else dict(marks)
    frame = _Frame(points, None if level is None else level[1], [tick for ticks in named.values() for tick in ticks])
    drawn = []
    for curve, colour in zip(curves.values(), COLOURS, strict=False):
        places = " ".join(frame.place(point) for point in curve)
        drawn.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    if level is not None:
        height = frame.y(level[1])
        drawn.append(f'<path d="M{LEFT},{height}H{WIDTH - RIGHT}" stroke="currentColor" stroke-dasharray="5 4"/>')
    for row, ticks in enumerate(named.values()):
        base, colour = HEIGHT - BOTTOM - 8 * row, COLOURS[len(curves) + row]
        drawn += [f'<path d="M{frame.x(tick)},{base}v-7" stroke="{colour}" stroke-width="1.4"/>' for tick in ticks]
    names = [*curves, *named]
    return _svg(frame.axes(x, y) + "".join(drawn), names, f"{y} against {x}", level and level[0])


def bars(
    groups: Mapping[str, Mapping[str, float]], *, x: str, y: str, limits: tuple[str, Mapping[str, float]] | None = None
) -> str:
    """Draw a group of bars for each key of `groups`; `limits` draws a dashed line across those it has a value for."""
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    top = max((value for group in groups.values() for value in group.values()), default=0.0)
    if not series or top <= 0:
        return ""
    frame = _Frame([(0.0, 0.0), (float(len(groups)), top)])
    drawn = []
    for place, (label, group) in enumerate(groups.items()):
        width = 0.8 / len(series)
        for number, name in enumerate(series):
            if name in group:
                left, height = frame.x(place + 0.1 + number * width), frame.y(group[name])
                across = frame.x(place + 0.1 + (number + 1) * width) - left - 1
                drawn.append(
                    f'<rect x="{left}" y="{height}" width="{max(across, 1)}" height="{frame.y(0) - height}" '
                    f'fill="{COLOURS[number % len(COLOURS)]}"><title>{escape(name)}: {group[name]:.4g}</title></rect>'
                )
        if limits is not None and label in limits[1]:
            line = f"M{frame.x(place + 0.04)},{frame.y(limits[1][label])}H{frame.x(place + 0.96)}"
            drawn.append(f'<path d="{line}" stroke="currentColor" stroke-width="1.4" stroke-dasharray="5 4"/>')
        drawn.append(_text(frame.x(place + 0.5), HEIGHT - BOTTOM + 14, label, "middle"))
    return _svg(frame.axes(x, y, ticks=False) + "".join(drawn), series, f"{y} by {x}", limits and limits[0])


class _Frame:
    """Maps values to coordinates in the picture. Both axes begin at zero; `marks` lie on the x axis."""

    def __init__(
        self, points: Sequence[tuple[float, float]], level: float | None = None, marks: Sequence[float] = ()
    ) -> None:
        along = [0.0, *(p[0] for p in points), *marks]
        self.low, self.high = min(along), max(along)
        self.top = max([p[1] for p in points] + ([level] if level is not None else [])) * 1.05 or 1.0

    def x(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return round(LEFT + (value - self.low) / span * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM), 1)

    def place(self, point: tuple[float, float]) -> str:
        return f"{self.x(point[0])},{self.y(point[1])}"

    def axes(self, x: str, y: str, *, ticks: bool = True) -> str:
        base = HEIGHT - BOTTOM
        parts = [f'<path d="M{LEFT},{TOP}V{base}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>']
        parts += [_text(LEFT - 6, self.y(self.top * f) + 4, _tick(self.top * f), "end") for f in (0, 0.5, 1)]
        if ticks:
            middle = (self.low + self.high) / 2
            parts += [_text(self.x(v), base + 14, _tick(v), "middle") for v in (self.low, middle, self.high)]
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x, "middle"))
        parts.append(
            f'<text transform="translate(12 {(TOP + base) / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
        )
        return "".join(parts)


def _svg(inside: str, names: Sequence[str], title: str, dashed: str | None = None) -> str:
    legend = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(names, COLOURS, strict=False)
    )
    if dashed is not None:
        legend += f'<span class="key"><i class="dashed"></i>{escape(dashed)}</span>'
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" font-size="11">'
    return f"<figure>{opening}{inside}</svg><figcaption>{legend}</figcaption></figure>"


def _tick(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _text(x: float, y: float, text: object, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(str(text))}</text>'


Fields = Mapping[str, Any]
MOST_POINTS = 1000


def of_file(fields: Fields) -> list[str]:
    drawn = [
        _stops(fields.get("token_accuracy")),
        _pause(fields.get("concurrent_demo")),
        _progression(fields),
        _flatline(fields),
        _neighbour(fields.get("neighbour_tokens_per_s")),
        _streamed(fields.get("models")),
        _agents_plot(fields.get("ways")),
    ]
    return [plot for plot in drawn if plot]


def _stops(accuracy: Fields | None) -> str:
    """Plot mean milliseconds of copying a stopped session out and back, by layer."""
    if not accuracy or not accuracy.get("entries"):
        return ""
    groups: dict[str, dict[str, float]] = {}
    for layer in sorted({entry["layer"] for entry in accuracy["entries"]}):
        found = [entry for entry in accuracy["entries"] if entry["layer"] == layer]
        groups[f"layer {layer}"] = {
            name: statistics.fmean(times)
            for name, key in (("out to the host", "checkpoint_copy_ms"), ("back", "restore_copy_ms"))
            if (times := [entry[key] for entry in found if entry.get(key) is not None])
        }
    return bars(groups, x="stopped after", y="ms")


def _pause(demo: Fields | None) -> str:
    if not demo or not demo.get("vram_samples_gb"):
        return ""
    curve = [*zip(demo["vram_samples_seconds"], demo["vram_samples_gb"], strict=True)]
    return lines({"device memory": curve}, x="seconds of the pause", y="GiB")


def _progression(fields: Fields) -> str:
    """Plot device memory over the run by the engine's accounting, with swaps and the capacity marked."""
    samples = fields.get("vram_samples")
    if not samples:
        return ""
    curves = {
        "weights and allocated pages": [(seconds, accounted) for seconds, accounted, *_ in samples],
        "of it in use": [(seconds, used) for seconds, _, used, *_ in samples],
    }
    return lines(
        curves,
        x="seconds",
        y="GiB",
        level=("capacity", fields["capacity_gb"]),
        marks={
            f"swap {way}": [event["timestamp"] for event in fields["swap_events"] if event["direction"] == way]
            for way in ("out", "in")
        },
    )


def latencies(written: Mapping[str, Fields]) -> str:
    """Plot each side's median by layer, and a limit: plain Hugging Face's pass times the share of layers above."""
    sides = {name: fields for name, fields in written.items() if name.endswith("_latency.json")}
    groups: dict[str, dict[str, float]] = {}
    limits: dict[str, float] = {}
    for name, fields in sides.items():
        for result in fields["results"]:
            side = name.removesuffix("_latency.json").replace("_", " ")
            place = f"{side}, KV {result['kv']}" if "kv" in result else side
            layer, median = f"layer {result['layer']}", result["resume_latency_median_ms"]
            groups.setdefault(layer, {})[place] = median
            count = fields["metadata"].get("num_layers")
            if name.startswith("recompute") and count:
                least = min(one["resume_latency_median_ms"] for one in fields["results"])
                limits[layer] = least * (count - result["layer"] - 1) / count
    return bars(groups, x="stopped after", y="ms", limits=("limit: the layers above alone", limits))


def _neighbour(rates: Fields | None) -> str:
    groups = {name.replace("_", " "): {"tokens/s": rate} for name, rate in (rates or {}).items() if rate is not None}
    return bars(groups, x="B", y="tokens/s") if groups else ""


def _agents_plot(ways: Sequence[Fields] | None) -> str:
    """Plot the milliseconds to the first token after a pause, for the largest crowd."""
    most = max((one["agents"] for one in ways or ()), default=0)
    groups = {
        one["way"].replace("_", " "): {name: found["value"] for name, found in one["first_token_ms"].items()}
        for one in ways or ()
        if one["agents"] == most and one["first_token_ms"] is not None
    }
    return bars(groups, x=f"{most} agents", y="ms") if groups else ""


def _flatline(fields: Fields) -> str:
    """Plot the bandwidth of each window of wall time, and the required one; many windows are thinned evenly."""
    rates = fields.get("samples_mbps")
    if not rates or "required_mbps" not in fields or "window_seconds" not in fields:
        return ""
    points = [(number * fields["window_seconds"], rate) for number, rate in enumerate(rates)]
    curve = points[:: max(1, len(points) // MOST_POINTS)]
    level = ("required", fields["required_mbps"])
    return lines({"windows of wall time": curve}, x="seconds of passes", y="MiB/s", level=level)


def _streamed(models: Any) -> str:
    """Plot the median milliseconds of a token of every side that ran, by model, and max(compute, bytes / bandwidth)."""
    if not models or "of_both_at_once" not in models[0]:
        return ""
    groups = {
        found["model"]: {
            name.replace("_", " "): side["token_ms"]["median"]
            for name, side in found["sides"].items()
            if name != "copying_alone" and "token_ms" in side
        }
        for found in models
    }
    limits = {found["model"]: found["limit"]["token_ms"]["median"] for found in models}
    return bars(groups, x="model", y="ms a token", limits=("max(compute, bytes / bandwidth)", limits))


LONGEST_LIST = 12
MOST_ROWS = 60
NAMING = ("", "claim", "trial", "layer", "kv")  # columns that tell one row from another; they come first
CLAIM = ("claim", "verdict", "value", "unit", "repetitions")
TRIAL = (
    "trial layer token_accuracy bitwise_equal stopped_in_decode layers_run_before_stop layers_run_after_resume "
    "os_overhead_percent checkpoint_time_ms restore_time_ms"
).split()


def scalars(fields: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every scalar of a file by its dotted path, long lists by their length; not what is shown elsewhere."""
    for key, value in fields.items():
        name = f"{path}{key}"
        if key == "claims":
            yield from _claims(value)
            continue
        if key in ("reasons", "arithmetic", "summary_table"):
            continue
        if isinstance(value, Mapping):
            yield from scalars(value, f"{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield name, _list(value)
        else:
            yield name, "not set" if value is None and name.startswith("config.") else spelled(value)


def grids(fields: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield title, head and rows of each table in a file."""
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
        yield from _agents_table(fields["ways"])
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


def _agents_table(ways: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
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


COLUMNS = 80
TableRows = Sequence[Sequence[str]]


def page(course: Course, name: str, verdict: str, failures: Sequence[str]) -> str:
    lines = [f"# {name}: {verdict}", "", *map(_broken, failures), ""]
    if course.remarks:
        lines += [*map(_broken, course.remarks), ""]
    if told := sums(course.written):
        lines += ["## Arithmetic", "", *map(_entry, told), ""]
    for file, fields in course.written.items():
        lines += [f"## {file}", "", *_file(fields), ""]
    missing = [_entry(f"{field}: {why}") for field, why in unmeasured(course.written)]
    lines += ["## Not measured", "", *(missing or ["Everything was."]), ""]
    lines += ["## Machine and versions", "", *(_entry(f"{field}: {value}") for field, value in machine())]
    return "\n".join(lines) + "\n"


def _file(fields: Mapping[str, Any]) -> Iterator[str]:
    for title, head, rows in grids(fields):
        yield from (f"### {title}", "")
        for part in parts(head, rows):
            yield from (*part, "")
    for field, value in scalars(fields):
        yield _entry(f"{field}: {value}")


def parts(head: Sequence[str], rows: TableRows) -> Iterator[list[str]]:
    """Yield the table's lines, in parts that fit; each part begins with the columns that name a row."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    naming = [column for column, name in enumerate(head) if name in NAMING]
    chosen = list(naming)
    for column in (column for column in range(len(head)) if column not in naming):
        if len(chosen) > len(naming) and sum(widths[c] + 3 for c in (*chosen, column)) + 1 > COLUMNS:
            yield _drawn(head, rows, chosen, widths)
            chosen = list(naming)
        chosen.append(column)
    yield _drawn(head, rows, chosen, widths)


def _drawn(head: Sequence[str], rows: TableRows, columns: Sequence[int], widths: Sequence[int]) -> list[str]:
    rule = ["-" * width for width in widths]
    return [f"| {' | '.join(row[c].ljust(widths[c]) for c in columns)} |" for row in (head, rule, *rows)]


def _entry(line: str) -> str:
    return _broken(f"- {line}", further="  ")


def _broken(line: str, further: str = "") -> str:
    return textwrap.fill(line, COLUMNS, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


STYLE = """
body{font:14px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse;margin:.5em 0}td,th{padding:2px 12px 2px 0;text-align:left;vertical-align:top}
td+td{font-variant-numeric:tabular-nums;word-break:break-word}h2{margin-top:1.6em;border-bottom:1px solid #ccc}
figure{margin:1em 0}svg{width:100%;height:auto}.key{margin-right:1.2em}
.key i{display:inline-block;width:10px;height:10px;margin-right:4px}.key{white-space:nowrap;display:inline-block}
.key i.dashed{height:0;width:16px;border-top:2px dashed currentColor;margin-bottom:3px}svg text{fill:currentColor}
.wide{overflow-x:auto}.wide table{font-size:12px}.wide th{border-bottom:1px solid #ccc;font-weight:600}
.wide td{word-break:normal;white-space:nowrap}.verdict{font-size:1.2em;font-weight:600}
@media (prefers-color-scheme:dark){body{background:#111;color:#ddd}h2{border-color:#444}}
"""


def write(course: Course, name: str, failures: Sequence[str]) -> None:
    """Write report.html and report.md in the folder of the course."""
    ended = "FAIL" if failures else "UNDECIDED" if course.undecided else "PASS"
    verdict = "BROKEN OFF" if course.broken_off else ended
    for file, made in zip(REPORTS, (_page, page), strict=True):
        course.put(file, made(course, name, verdict, [*failures, *course.undecided]))


def _page(course: Course, name: str, verdict: str, failures: Sequence[str]) -> str:
    parts = [
        f"<h1>{escape(name)}</h1><p class='verdict'>{verdict}</p>",
        "".join(f"<p>{escape(failure)}</p>" for failure in (*failures, *course.remarks)),
        f"<p>{now()}, {course.elapsed:.0f} seconds.</p>",
    ]
    if told := sums(course.written):
        parts.append("<h2>Arithmetic</h2>" + "".join(f"<p>{escape(line)}</p>" for line in told))
    parts.append(latencies(course.written))
    for file, fields in course.written.items():
        parts.append(f"<h2>{escape(file)}</h2>")
        parts += of_file(fields)
        parts += [_grid(*grid) for grid in grids(fields)]
        parts.append(_table(scalars(fields)))
    parts.append("<h2>Not measured</h2>")
    missing = list(unmeasured(course.written))
    parts.append(_table(missing) if missing else "<p>Everything was.</p>")
    parts.append(f"<h2>Machine and versions</h2>{_table(machine())}")
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(name)}: {verdict}</title>"
    return f"{head}<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"


def _grid(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name).replace('_', '_<wbr>')}</th>" for name in head)
    below = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h3>{escape(title)}</h3><div class='wide'><table><tr>{top}</tr>{below}</table></div>"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"
