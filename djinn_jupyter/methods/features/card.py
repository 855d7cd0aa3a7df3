"""A feature's page: how often it is active, what it writes, features like it, and examples with tokens coloured by its
value. Static: it needs no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from djinn_jupyter.api.names import labelled
from djinn_jupyter.methods.features.api.examples import INTERVALS, FeatureExample, FeatureValues
from djinn_jupyter.methods.features.api.page import FeaturePage
from djinn_jupyter.methods.features.request import WrittenToken
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.charts import histogram
from djinn_jupyter.widgets.html import Html, card, div, element, facts, folded, joined, named, named_site, part, table
from djinn_jupyter.widgets.panels import Bars, Panel
from djinn_jupyter.widgets.pictures import scale_legend
from djinn_jupyter.widgets.spelling import columns, figure, logit, marked, plural, quoted, truncated
from djinn_jupyter.widgets.tokens import cell_token, signed_style, token_strip
from djinn_jupyter.widgets.view import View

LONGEST: Final = 40  # characters of a token
LONGEST_PLAIN, TOKENS_PLAIN, EXAMPLES_PLAIN = 16, 6, 5
AROUND_PLAIN: Final = 4  # tokens on a side
UNIT: Final = "A logit is what a unit of it adds by way of the residual alone: its decoder row times "
FOLDED: Final = f"{UNIT}the final norm's weight and W_U, without the norm's factor."
PLAIN: Final = f"{UNIT}W_U; the model has no single norm before it."
NEVER: Final = "It is never active here."


def page_view(page: FeaturePage) -> View:
    """Show the page of a feature."""
    of = page.over
    html = card(
        facts(_facts(page)),
        *(_values(page, of) if of is not None else ()),
        _decoder(page),
        *(_examples(page, of) if of is not None else ()),
        _notes(page),
        title=joined(["Feature ", named_site(page.site)]),
        beside=page.reply.kind.replace("_", " "),
    )
    panels = _panels(page)
    return View(plain=_plain(page), html=html, chart=(lambda: Chart(panels=panels)) if panels else None)


def _facts(page: FeaturePage) -> list[tuple[str, str]]:
    reply, of = page.reply, page.over
    found = [("reads", reply.at), ("writes", reply.writes or "nothing back")]
    if of is not None:
        found += [("active", _active(of)), ("over", _over(of))]
    return found


def _active(of: FeatureValues) -> str:
    if not of.active:
        return f"at none of {plural(of.positions, 'position')}"
    share = f"{of.active:,} of {plural(of.positions, 'position')} ({figure(100 * of.density)} %)"
    return f"{share}; where it is, mean {figure(of.mean)}, largest {figure(of.largest)}"


def _over(of: FeatureValues) -> str:
    return f"{plural(of.prompts, 'prompt')} in {Path(of.folder).name}, at {of.site}"


def _values(page: FeaturePage, of: FeatureValues) -> list[Html]:
    if not of.active:
        return [part(NEVER)]
    drawn = histogram(of.counts, "0", figure(of.largest), alt=f"histogram of the values of {page.site} above zero")
    return [part(drawn, name="positions by value, where it is active")]


def _decoder(page: FeaturePage) -> Html:
    """Draw what it writes to the vocabulary and the features like it, side by side."""
    reply = page.reply
    drawn = [("promotes", _tokens(page.promoted)), ("suppresses", _tokens(page.suppressed))] if page.promoted else []
    drawn += [("features like it, by the cosine of decoder rows", _like(page))] if page.like else []
    pair = div("dj-pair", *(element("div", named(name), made) for name, made in drawn))
    return part(pair, div("dj-note", reply.unwritten or _said(page)))


def _said(page: FeaturePage) -> str:
    return FOLDED if page.reply.folded else PLAIN


def _tokens(tokens: Sequence[WrittenToken]) -> Html:
    rows = [[cell_token(_short(one.text), one.token), logit(one.logit, signed=True)] for one in tokens]
    return table(["token", "logit"], rows, numeric=(1,))


def _short(text: str) -> str:
    return truncated(text, LONGEST)


def _correlations(page: FeaturePage) -> list[str]:
    if page.over is None:
        return ["" for _ in page.like]
    return ["" if found is None else logit(found) for found in page.over.correlations]


def _site(page: FeaturePage, number: int) -> str:
    return f"{page.site.partition('[')[0]}[{number}]"


def _like(page: FeaturePage) -> Html:
    pairs = zip(page.like, _correlations(page), strict=True)
    rows = [[named_site(_site(page, one.feature)), figure(one.cosine, 2), found] for one, found in pairs]
    head = ["feature", "cosine", "correlation of values"]
    width = 2 if page.over is None else 3
    return table(head[:width], [row[:width] for row in rows], numeric=(1, 2))


def _examples(page: FeaturePage, of: FeatureValues) -> list[Html]:
    if not of.examples:
        return []
    rest = [one for one in of.examples if one.interval is not None]
    legend = scale_legend(f"value of {labelled(page.site)}", figure(-of.largest), figure(of.largest), "signed")
    found = [part(_table(page.examples, of.largest), legend, name="where it is largest")]
    others = [_table([one for one in rest if one.interval == at], of.largest, _interval(of, at)) for at in _there(rest)]
    return [*found, part(folded(div("", *others), "examples by value"))] if others else found


def _there(examples: Sequence[FeatureExample]) -> list[int]:
    """Return the intervals with examples, the highest first."""
    return sorted({one.interval for one in examples if one.interval is not None}, reverse=True)


def _interval(of: FeatureValues, number: int) -> str:
    each = len(of.counts) // INTERVALS
    low, high = number * each, (number + 1) * each
    share = figure(100 * sum(of.counts[low:high]) / of.active)
    return f"{figure(of.edges[low])} to {figure(of.edges[high])}: {share} % of where it is active"


def _table(examples: Sequence[FeatureExample], largest: float, name: str | None = None) -> Html:
    rows = [
        [
            figure(one.value),
            f"{one.prompt}, {one.position}",
            element("td", _strip(one, largest), class_="dj-long"),
        ]
        for one in examples
    ]
    made = table(["value", "prompt, position", "text"], rows, numeric=(0,))
    return made if name is None else element("div", named(name), made)


def _strip(one: FeatureExample, largest: float) -> Html:
    """Draw the tokens around an example, coloured by the feature's value, the token itself underlined."""
    known = {at: value for at, value in enumerate(one.values) if value is not None}
    said = {at: f"position {one.first + at}" for at in range(len(one.tokens))}
    said |= {at: f"{said[at]}: {figure(value)}" for at, value in known.items()}
    styles = {at: signed_style(min(1.0, value / largest)) for at, value in known.items() if value > 0}
    return token_strip(
        [_short(text) for text in one.texts], one.tokens, here=(one.position - one.first,), styles=styles, said=said
    )


def _notes(page: FeaturePage) -> Html | None:
    said = _sentences(page)
    return part(*(div("dj-note", note) for note in said)) if said else None


def _sentences(page: FeaturePage) -> list[str]:
    return [*page.reply.notes, *(() if page.over is None else page.over.notes)]


def _plain(page: FeaturePage) -> str:
    told = [repr(page), columns(_facts(page))]
    if page.reply.unwritten:
        told.append(f"what it writes to the vocabulary: {page.reply.unwritten}")
    else:
        pair = (("promotes", page.promoted), ("suppresses", page.suppressed))
        told += [f"{name}: {_tokens_plain(tokens)}" for name, tokens in pair]
        told.append(_said(page))
    if page.like:
        pairs = zip(page.like, _correlations(page), strict=True)
        label = partial(labelled, longest=LONGEST_PLAIN)
        each = (f"{label(_site(page, one.feature))} {figure(one.cosine, 2)}{f' (r {r})' if r else ''}"
                for one, r in pairs)  # fmt: skip
        told.append(f"like it, by cosine: {', '.join(each)}")
    if page.over is not None:
        told += _values_plain(page, page.over)
    return "\n".join([*told, *_sentences(page)])


def _tokens_plain(tokens: Sequence[WrittenToken]) -> str:
    each = (
        f"{quoted(truncated(one.text, LONGEST_PLAIN), one.token)} {logit(one.logit, signed=True)}"
        for one in tokens[:TOKENS_PLAIN]
    )
    return ", ".join(each)


def _values_plain(page: FeaturePage, of: FeatureValues) -> list[str]:
    if not of.active:
        return [NEVER]
    counts = ", ".join(f"{count:,}" for count in of.counts)
    rows = [
        [figure(one.value), f"{one.prompt}, {one.position}", _around(one)] for one in page.examples[:EXAMPLES_PLAIN]
    ]
    told = [f"positions by value from 0 to {figure(of.largest)}: {counts}"]
    return [*told, columns(rows, ["value", "prompt, position", "text"])] if rows else told


def _around(one: FeatureExample) -> str:
    """Spell the tokens around an example, the token itself in brackets."""
    at = one.position - one.first
    before = "".join(map(_short, one.texts[max(0, at - AROUND_PLAIN) : at]))
    behind = "".join(map(_short, one.texts[at + 1 : at + 1 + AROUND_PLAIN]))
    return truncated(quoted(f"{before}\u00ab{_short(one.text)}\u00bb{behind}"), 2 * LONGEST)


def _panels(page: FeaturePage) -> list[Panel]:
    of, found = page.over, list[Panel]()
    if of is not None and of.active:
        bins = [f"{figure(low)} to {figure(high)}" for low, high in pairwise(of.edges)]
        found.append(Bars(title=f"values of {labelled(page.site)} above zero", names=bins,
                          series={"positions": of.counts}, measure="positions"))  # fmt: skip
    tokens = [*page.promoted, *page.suppressed[::-1]]
    if tokens:
        words = [marked(one.text, one.token) for one in tokens]
        found.append(Bars(title=f"what {labelled(page.site)} adds to logits", names=words,
                          series={"logit": [one.logit for one in tokens]}, measure="logit"))  # fmt: skip
    if page.like:
        labels = [labelled(_site(page, one.feature)) for one in page.like]
        found.append(Bars(title=f"features like {labelled(page.site)}", names=labels,
                          series={"cosine": [one.cosine for one in page.like]}, measure="cosine"))  # fmt: skip
    return found
