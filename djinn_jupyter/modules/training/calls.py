"""`dj.train_sae` and its like, and the difference of two means as a steering vector, computed in this process by
numpy."""

from __future__ import annotations

import io
import json
import math
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from safetensors.numpy import save

from djinn_jupyter.api.arguments import checked_seed, given_path, shown, typed
from djinn_jupyter.api.arrays import to_numpy
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.interrupts import interruptible
from djinn_jupyter.api.likeness import temporary_session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.modules.files import folder
from djinn_jupyter.modules.files.files import require_free, write_folder
from djinn_jupyter.modules.training import jobs
from djinn_jupyter.modules.training.collections import collection_of, labels_given, labels_of, provenance, rows_of
from djinn_jupyter.modules.training.jobs import Method
from djinn_jupyter.modules.training.process import PROVENANCE, VECTOR, OnTrained, TrainedModule, module_in, train

Norm = Literal["rms", "layer"]
CANDIDATES: Final[tuple[tuple[Norm, bool], ...]] = (("rms", False), ("layer", False), ("layer", True))
EPSILONS: Final = (1e-5, 1e-6, 1e-8, 1e-12)
ENOUGH_ROWS: Final = 8  # to distinguish an offset from the error of a wrong norm
PROMPTS: Final = 8
TOLERANCE: Final = {"float32": 2e-3}  # of the spread of the logits
TOLERANCE_OF_OTHERS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unembedding:
    """`norm(x) @ matrix_DV + offset_V`, the gain of the norm multiplied in."""

    norm: Norm
    epsilon: float
    matrix_DV: np.ndarray[Any, Any]
    offset_V: np.ndarray[Any, Any]

    def logits(self, x_ND: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = normed(x_ND, self.norm, self.epsilon) @ self.matrix_DV + self.offset_V
        return found

    def save(self, path: Path) -> None:
        np.savez(path, matrix=self.matrix_DV, offset=self.offset_V)


def normed(x_ND: Any, norm: Norm, epsilon: float) -> Any:
    """Return rows of root mean square 1, for a layer norm about their mean."""
    centred = x_ND - x_ND.mean(-1, keepdims=True) if norm == "layer" else x_ND
    return centred / ((centred**2).mean(-1, keepdims=True) + epsilon) ** 0.5


def unembedding_of(engine: RemoteEngine, collection: Activations, last: str) -> Unembedding:
    """Return the unembedding of the engine's model. Raises UsageError for a model with another kind of head, or a
    collection of another model."""
    rows, logits = _examples(engine, collection, last)
    matrix_DV = np.asarray(engine.weight("W_U", fold_norm=True), dtype="f8")
    allowed = TOLERANCE.get(engine.description.dtype, TOLERANCE_OF_OTHERS) * float(logits.std())
    for norm, has_offset in CANDIDATES:
        for epsilon in EPSILONS:
            left = logits - normed(rows, norm, epsilon) @ matrix_DV
            offset = left.mean(0) if has_offset and len(rows) >= ENOUGH_ROWS else np.zeros(left.shape[1])
            if float(np.abs(left - offset).max()) <= allowed:
                return Unembedding(norm=norm, epsilon=epsilon, matrix_DV=matrix_DV, offset_V=offset)
    raise UsageError(
        f"The logits of {engine.description.name} are not made from {last} of this collection by a norm and W_U, so no "
        "lens can be tuned by it: collect from this very model, and from one without a cap on its logits."
    )


def _examples(engine: RemoteEngine, collection: Activations, last: str) -> tuple[Any, Any]:
    """Return rows of the last residual and the model's logits there."""
    rows, logits = [], []
    for number in range(min(PROMPTS, len(collection))):
        with temporary_session(engine.channel, "score") as session:
            tokens = tuple(int(one) for one in collection.tokens[number])
            reply = ask_for(engine.channel, Score(session=session, prompts=(tokens,), what="logits"))
        found = to_numpy(reply.values)
        logits.append(found if collection.positions is None else found[list(collection.positions)])
        rows.append(np.asarray(collection[last][number]).reshape(len(logits[-1]), -1))
    return np.concatenate(rows).astype("f8"), np.concatenate(logits).astype("f8")


def write_difference(job: jobs.SteeringJob) -> None:
    """Write the folder of a vector from the mean of the other rows to the mean of the positive rows, like a training by
    another method. Raises UsageError where the means are equal, StorageFailed and WorkInterrupted, with nothing
    written."""
    with interruptible("The training", done="nothing was written"):
        collection = Activations(job.collection)
        rows = rows_of(collection, job.site)
        positive_N = labels_of(rows.prompts_N, job.positive).astype(bool)
        x_ND = rows.values_ND.astype(np.float64)
        low_D = x_ND[~positive_N].mean(0)
        vector_D = x_ND[positive_N].mean(0) - low_D
        length = float(np.linalg.norm(vector_D))
        if not length > 0:
            raise UsageError("Positive and other rows have the same mean along this direction, so it steers nowhere.")
        weight_D = vector_D / length**2
        bias = -(weight_D @ low_D)
        figures = {"length": length, "told_apart": float(((x_ND @ weight_D + bias > 0.5) == positive_N).mean())}
        tensors = {"weight": weight_D[None].astype("<f4"), "bias": bias[None].astype("<f4")}
        form = {"kind": "probe", "dtype": "float32", "trained_at": job.site}
        vector = io.BytesIO()
        np.save(vector, vector_D.astype("<f4"), allow_pickle=False)
        files = {
            folder.DECLARED: (json.dumps(form, indent=1) + "\n").encode(),
            folder.TENSORS: save(tensors),
            VECTOR: vector.getvalue(),
            PROVENANCE: provenance(job, collection, figures, {"numpy": np.__version__}, platform.machine()),
        }
        write_folder(Path(job.to), files)


# `dj.train_sae` and its like: one call on a collection, one folder that `engine.add_module` takes.

MOST: Final = 2**20


@typed
def train_sae(
    collection: Activations | str | Path,
    *,
    to: str | Path,
    site: str | None = None,
    features: int = 1024,
    active: int = 16,
    steps: int = 2000,
    batch: int = 1024,
    rate: float = 0.003,
    seed: int = 0,
    threads: int = 1,
    on_progress: OnTrained | None = None,
) -> TrainedModule:
    """Train an SAE with so many `features` on a site of a collection, and save it in the folder `to`. On average
    `active` features fire at a position. Name the `site` where the collection has several. Training uses a top-k over
    each batch (BatchTopK), for `steps` of `batch` positions with Adam at `rate`; the result is saved as a JumpReLU of
    SAELens. The same call has the same bits on one machine with as many `threads`. UsageError; StorageFailed;
    WorkInterrupted, whose `kept` is the module so far, which is also in the folder; its provenance has the step.

    >>> acts = engine.collect(["The capital of France is", "People in Italy speak"], "resid_post.4", to=folder)
    >>> sae = dj.train_sae(acts, to=new_folder, features=32, active=4, steps=5)
    >>> sae.kind, sorted(sae.figures), engine.add_module("tiny", sae.folder).site
    ('sae', ['active', 'explained_variance', 'never_active'], 'tiny.4')
    """
    job = jobs.SaeJob(
        **_common(collection_of(collection), site, to, seed, threads), **_sparse(features, active, steps, batch, rate)
    )
    return _trained(job, "sae", on_progress)


@typed
def train_transcoder(
    collection: Activations | str | Path,
    *,
    to: str | Path,
    site: str,
    written: str | None = None,
    features: int = 1024,
    active: int = 16,
    steps: int = 2000,
    batch: int = 1024,
    rate: float = 0.003,
    seed: int = 0,
    threads: int = 1,
    on_progress: OnTrained | None = None,
) -> TrainedModule:
    """Train a transcoder with so many `features` that computes an MLP's output from its input, and save it in the
    folder `to`. It reads `site`, such as "mlp_in.4", and makes `written`, by default the mlp_out of the same layer; the
    collection has both, for the same prompts. Otherwise as `train_sae`; saved as SAELens's jumprelu_transcoder.
    UsageError; StorageFailed; WorkInterrupted.

    >>> acts = engine.collect(["The capital of France is", "People in Italy"], ["mlp_in.4", "mlp_out.4"], to=folder)
    >>> trained = dj.train_transcoder(acts, to=new_folder, site="mlp_in.4", features=32, active=4, steps=5)
    >>> trained.kind, engine.add_module("made", trained.folder).writes
    ('transcoder', 'mlp_out.4')
    """
    given = collection_of(collection)
    other = site.replace("mlp_in.", "mlp_out.", 1) if written is None else written
    if other == site or not {site, other} <= set(given.sites):
        raise UsageError(
            "A transcoder is trained on what it reads and what it makes: collect both, as in ['mlp_in.4', "
            f"'mlp_out.4']; this collection has {', '.join(given.sites)}."
        )
    job = jobs.TranscoderJob(
        **_common(given, site, to, seed, threads), written=other, **_sparse(features, active, steps, batch, rate)
    )
    return _trained(job, "transcoder", on_progress)


@typed
def train_probe(
    collection: Activations | str | Path,
    labels: object,
    *,
    to: str | Path,
    site: str | None = None,
    penalty: float = 0.001,
    held_out: float = 0.2,
    seed: int = 0,
    threads: int = 1,
) -> TrainedModule:
    """Train a linear probe on a site of a collection, and save it in the folder `to`. `labels` has one for each prompt,
    or one for each kept position. Texts, whole numbers, True or False are classes, for logistic regression; other
    numbers are for ridge regression. Its values are the logit of the second of two classes, or one logit for each of
    several classes, in the order of `provenance["training"]["classes"]`. The share `held_out` of the prompts is used
    only for measuring. `penalty` applies to the squared weights, for rows divided by the root of their mean square.
    UsageError; StorageFailed; WorkInterrupted.

    >>> prompts = ["The capital of France", "The capital of Italy", "People in Italy speak", "In Spain people speak"]
    >>> acts = engine.collect(prompts, "resid_post.4", to=folder, positions=-1)
    >>> probe = dj.train_probe(acts, ["capital", "capital", "language", "language"], to=new_folder, held_out=0)
    >>> probe.figures, engine.add_module("told", probe.folder).site
    ({'accuracy_trained': 1.0}, 'told.4')
    """
    given, chosen = collection_of(collection), labels_given(labels)
    job = jobs.ProbeJob(
        **_common(given, site, to, seed, threads),
        labels=chosen.numbers,
        classes=chosen.classes,
        penalty=_at_least_0("penalty", penalty),
        held_out=_share("held_out", held_out),
    )
    return _trained(job, "probe", None)


@typed
def steering_vector(
    collection: Activations | str | Path,
    positive: object,
    *,
    to: str | Path,
    site: str | None = None,
    method: Method = "mean_difference",
    penalty: float = 0.001,
    seed: int = 0,
    threads: int = 1,
) -> TrainedModule:
    """Find the direction from the other rows of a site to the `positive` ones (True or False for each prompt, or for
    each kept position), and save it in the folder `to`. `method`: the difference of the means, the first principal
    component of all rows, or the weights of a logistic regression. Its `vector`, for `dj.add`, is as long as the
    distance of the means along it. As a module it reads 0 at the mean of the other rows and 1 at the mean of the
    positive rows. UsageError; StorageFailed; WorkInterrupted.

    >>> prompts = ["It was a sad day.", "It was a gloomy day.", "It was a happy day.", "It was a merry day."]
    >>> acts = engine.collect(prompts, "resid_post.4", to=folder, positions=-1)
    >>> sadness = dj.steering_vector(acts, [True, True, False, False], to=new_folder)
    >>> sadness.vector.shape, engine.add_module("sadness", sadness.folder).site
    ((128,), 'sadness.4')
    """
    given, chosen = collection_of(collection), labels_given(positive)
    if chosen.classes != ("False", "True"):
        raise UsageError("positive is True or False for each prompt, and both have to be there.")
    job = jobs.SteeringJob(
        **_common(given, site, to, seed, threads),
        positive=tuple(map(bool, chosen.numbers)),
        method=method,
        penalty=_at_least_0("penalty", penalty),
    )
    if method != "mean_difference":
        return _trained(job, "steering vector", None)
    require_free(Path(job.to))
    write_difference(job)
    return module_in(Path(job.to), job.site, "steering vector")


@typed
def train_tuned_lens(
    engine: RemoteEngine,
    collection: Activations | str | Path,
    *,
    to: str | Path,
    site: str,
    steps: int = 500,
    batch: int = 256,
    rate: float = 0.001,
    held_out: float = 0.1,
    seed: int = 0,
    threads: int = 1,
    on_progress: OnTrained | None = None,
) -> TrainedModule:
    """Train a tuned lens for `site`, and save it in the folder `to`: a translation after which the model's head
    predicts the next token as after its last layer. The collection has the site and the last `resid_post`, for the same
    prompts; the engine provides the head, which is a norm and `W_U`. Adam at `rate`, which falls to 0, over `steps` of
    `batch` positions. Its figures are Kullback-Leibler divergences from the model's own probabilities, in nats, on the
    `held_out` prompts. UsageError for a model with another kind of head; StorageFailed; WorkInterrupted.

    >>> prompts = ["The capital of France is", "People in Italy speak", "Monday, Tuesday,", "Mary gave a book to"]
    >>> acts = engine.collect(prompts, ["resid_post.4", "resid_post.7"], to=folder)
    >>> lens = dj.train_tuned_lens(engine, acts, to=new_folder, site="resid_post.4", steps=20, held_out=0)
    >>> lens.figures["divergence"] < lens.figures["divergence_of_logit_lens"]
    True
    >>> engine.add_module("tuned", lens.folder).site
    'tuned.4'
    """
    given, last = collection_of(collection), f"resid_post.{engine.description.layers - 1}"
    common = _common(given, site, to, seed, threads)
    if last not in given.sites:
        raise UsageError(
            f"The collection has no {last}, which a lens is tuned to: collect both, as [{site!r}, {last!r}]."
        )
    require_free(Path(common["to"]))
    head = unembedding_of(engine, given, last)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "head.npz"
        head.save(path)
        job = jobs.TunedLensJob(
            **common,
            last=last,
            head=str(path),
            norm=head.norm,
            epsilon=head.epsilon,
            steps=_count("steps", steps),
            batch=_count("batch", batch),
            rate=_positive("rate", rate),
            held_out=_share("held_out", held_out),
        )
        return _trained(job, "tuned lens", on_progress)


def _common(collection: Activations, site: str | None, to: str | Path, seed: int, threads: int) -> dict[str, Any]:
    """Return the common fields of every job."""
    if site is None and len(collection.sites) > 1:
        raise UsageError(f"The collection has several sites; name one, as in site={collection.sites[0]!r}.")
    chosen = collection[collection.sites[0] if site is None else site].name
    return {
        "collection": str(collection.folder.absolute()),
        "site": chosen,
        "to": str(given_path(to, "folder")),
        "seed": checked_seed(seed),
        "threads": _count("threads", threads),
    }


def _sparse(features: int, active: int, steps: int, batch: int, rate: float) -> dict[str, Any]:
    """Return the checked sparsity settings of an SAE or a transcoder."""
    return {
        "features": _count("features", features),
        "active": _count("active", active, most=features),
        "steps": _count("steps", steps),
        "batch": _count("batch", batch),
        "rate": _positive("rate", rate),
    }


def _trained(job: jobs.AnyJob, kind: str, on_progress: OnTrained | None) -> TrainedModule:
    require_free(Path(job.to))
    train(job, on_progress)
    return module_in(Path(job.to), job.site, kind)


def _count(name: str, value: int, most: int = MOST) -> int:
    if not 1 <= value <= most:
        raise UsageError(f"{name} is a whole number from 1 to {most:,}, not {shown(value)}.")
    return value


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise UsageError(f"{name} is a number above 0, not {shown(value)}.")
    return value


def _at_least_0(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise UsageError(f"{name} is a number, 0 or more, not {shown(value)}.")
    return value


def _share(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise UsageError(f"{name} is a share of the prompts, from 0 to less than 1, not {shown(value)}.")
    return value
