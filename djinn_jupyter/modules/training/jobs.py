"""The jobs of the process that trains, one for each kind of module, and its output lines. Data only."""

from __future__ import annotations

from typing import Literal

from djinn_jupyter.wire.base import Frozen

Method = Literal["mean_difference", "pca", "logistic"]


class TrainingJob(Frozen, frozen=True, tag_field="job"):
    """A module to train on the rows of `site` in the collection of a folder, into the folder `to`. The same job has the
    same bits, on one machine with as many `threads`."""

    collection: str
    site: str
    to: str
    seed: int
    threads: int


class SaeJob(TrainingJob, frozen=True, tag="sae"):
    """An SAE with so many `features`; on average `active` of them fire at a row."""

    features: int
    active: int
    steps: int
    batch: int
    rate: float


class TranscoderJob(SaeJob, frozen=True, tag="transcoder"):
    """A transcoder with as many features that makes the rows of the site `written` from those of `site`."""

    written: str


class ProbeJob(TrainingJob, frozen=True, tag="probe"):
    """A linear probe. `labels` are numbers, one a prompt or one a row: indices into `classes`, or without classes the
    target values. A share of the prompts is `held_out` of the training."""

    labels: tuple[float, ...]
    classes: tuple[str, ...]
    penalty: float
    held_out: float


class SteeringJob(TrainingJob, frozen=True, tag="steering_vector"):
    """A direction from the rows that are not positive to those that are; one label a prompt or one a row."""

    positive: tuple[bool, ...]
    method: Method
    penalty: float


class TunedLensJob(TrainingJob, frozen=True, tag="tuned_lens"):
    """A translation to the residual `last`, whose logits follow from the arrays in the file `head`, after a norm."""

    last: str
    head: str
    norm: str
    epsilon: float
    steps: int
    batch: int
    rate: float
    held_out: float


AnyJob = SaeJob | TranscoderJob | ProbeJob | SteeringJob | TunedLensJob


class TrainingProgressed(Frozen, frozen=True, tag_field="line", tag="progressed"):
    """So many steps are `done`, and the last had this loss."""

    done: int
    of: int
    loss: float


class TrainingEnded(Frozen, frozen=True, tag_field="line", tag="ended"):
    """The folder is written."""


class TrainingRefused(Frozen, frozen=True, tag_field="line", tag="refused"):
    """Nothing was written, for this reason: an error of ours, by its code."""

    code: str
    sentence: str


Line = TrainingProgressed | TrainingEnded | TrainingRefused
