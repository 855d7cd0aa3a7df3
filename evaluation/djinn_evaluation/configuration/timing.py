"""The files of `resume-latency` and `checkpoint-cost`: exactly the flags of the original's scripts as keys."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_evaluation.configuration.section import (
    Gigabytes,
    Layer,
    Name,
    OwnDtype,
    Positive,
    Seconds,
    Section,
)
from djinn_jupyter.errors import UsageError


class ResumeLatency(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment resume-latency`."""

    model: Annotated[Name, Meta(description="`demo`, a folder or a hub name.")]
    dtype: OwnDtype = None
    layers: Annotated[tuple[Layer, ...], Meta(min_length=1, description="Layers that the pass is stopped after.")]
    max_length: Annotated[Positive, Meta(description="Tokens of the prompt.")]
    warmup: Annotated[int, Meta(ge=0, description="Resumes that are not counted, for each layer and side.")] = 2
    repeat: Annotated[Positive, Meta(description="Resumes that are counted; their verdict takes six.")] = 10
    skip_recompute: Annotated[bool, Meta(description="Leave out running the prompt again from its start.")] = False
    skip_offload: Annotated[bool, Meta(description="Leave out manual offload of the hidden state.")] = False
    skip_djinn: Annotated[bool, Meta(description="Leave out ours.")] = False
    output_dir: Annotated[Name, Meta(description="The folder of the results.")]

    def check(self) -> None:
        if self.skip_recompute and self.skip_offload and self.skip_djinn:
            raise UsageError("All three sides are skipped; leave at least one in.")
        if len(set(self.layers)) != len(self.layers):
            raise UsageError(f"layers names a layer twice: {list(self.layers)}.")


class CheckpointCost(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment checkpoint-cost`."""

    model: Annotated[Name, Meta(description="`demo`, a folder or a hub name.")]
    dtype: OwnDtype = None
    layer: Annotated[Layer, Meta(description="The layer after which session A stops.")]
    max_length: Annotated[Positive, Meta(description="Tokens of A's prompt.")]
    neighbour_tokens: Annotated[Positive, Meta(description="Tokens that the neighbour B generates in each part.")] = 64
    stop_interval_seconds: Annotated[Seconds, Meta(description="A stops once in so many seconds.")] = 1.0
    repeat: Annotated[Positive, Meta(description="How often each part is measured; its verdict takes six.")] = 6
    host_limit_gb: Annotated[Gigabytes | None, Meta(description="Host memory for what is written through.")] = None
    output_dir: Annotated[Name, Meta(description="The folder of the results.")]
