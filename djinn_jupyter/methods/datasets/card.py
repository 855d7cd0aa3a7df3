"""Collections in words: their sites, prompts and folder."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.datasets.api.scoring import Losses
from djinn_jupyter.widgets.spelling import amount, plural


def collected_lines(acts: Activations) -> str:
    """Return a line for each site, and one on the files."""
    size = sum(shard.path.stat().st_size for shard in acts.shards)
    sites = [f"{site}  {list(acts[site].shape)} {acts[site].dtype.name}" for site in acts.sites]
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
