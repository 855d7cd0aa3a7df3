"""Collections in words: their sites, prompts and folder. Losses by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from djinn_jupyter.api.names import labelled
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.datasets.api.scoring import Losses, Splice
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.panels import Bars, Lines
from djinn_jupyter.widgets.spelling import amount, plural
from djinn_jupyter.widgets.tables import table_view
from djinn_jupyter.widgets.view import View

PROMPTS = 5  # with a line of their own


def collected_lines(acts: Activations) -> str:
    """Return a line for each site, and one on the files."""
    size = sum(shard.path.stat().st_size for shard in acts.shards)
    sites = [f"{labelled(site)}  {list(acts[site].shape)} {acts[site].dtype.name}" for site in acts.sites]
    files = f"{plural(len(acts), 'prompt')} in {plural(len(acts.shards), 'shard')}, {amount(size)}: {acts.folder.name}"
    if acts.exact:
        how = "each prompt computed alone"
    else:
        difference = "not measured" if acts.largest_difference is None else f"{acts.largest_difference:.2g}"
        how = f"largest difference: {difference}, from prompts of each shard that were computed again alone"
    return "\n".join([*sites, files, how, *acts.notes])


def loss_lines(losses: Losses, rules: Sequence[str]) -> str:
    """Return the mean and the perplexity, with the rules in force."""
    return "\n".join([repr(losses), *_shared(losses), *losses.notes, *(f"under rule {rule}" for rule in rules)])


def _shared(losses: Losses) -> list[str]:
    if losses.mode == "exact":
        return []
    difference = "not measured" if losses.largest_difference is None else f"{losses.largest_difference:.2g}"
    return [f"fast: largest difference {difference}, from prompts that were computed again alone"]


def losses_view(losses: Losses) -> View:
    """Show losses as a table; their chart is by position."""
    return replace(table_view(losses), chart=lambda: Chart(panels=[_by_position(losses)]))


def _by_position(losses: Losses) -> Lines:
    """Return a line for each of a few prompts, or the mean over all prompts that have the position."""
    longest = max(map(len, losses))
    each = np.full((len(losses), longest), np.nan)
    for number, one in enumerate(losses):
        each[number, : len(one)] = one
    series = {f"prompt {number}": row.tolist() for number, row in enumerate(each)}
    if len(losses) > PROMPTS:
        series = {f"mean of {len(losses):,} prompts": np.nanmean(each, axis=0).tolist()}
    return Lines(title=f"loss by position, {losses.mode}", places=range(1, longest + 1), series=series,
                 across="position", measure="loss, nats")  # fmt: skip


def splice_view(splice: Splice) -> View:
    """Show the three losses of a splice."""
    losses = splice.columns()
    bars = Bars(title=f"{splice.module} in place of {splice.at}", names=losses["with"], series={"loss": losses["loss"]},
                measure="loss, nats")  # fmt: skip
    return replace(table_view(splice), chart=lambda: Chart(panels=[bars]))
