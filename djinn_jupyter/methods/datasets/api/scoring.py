"""Loss and perplexity of prompts, and the logits of all positions of a token sequence."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Final

import numpy as np

from djinn_jupyter.api import arguments, arrays, interrupts, likeness, result, result_files, tables
from djinn_jupyter.api.edits import scale, zero
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.runs import given_prompts, of_how_many, tokenized
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError, MeasurementEnded, UnknownSite, UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.link.waiting import far
from djinn_jupyter.methods.datasets.request import Score, Scored
from djinn_jupyter.modules.api import add_module, remove_module
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.modules import AddedModuleDescription
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.texts import shown

ANY_SESSION: Final = "score"
ASKED_TOKENS: Final = 2**14  # of one request, so that an interrupt loses little


class Losses(result.Result):
    """The loss of each token of some prompts except the first: its negative log-likelihood, in nats.

    `loss` is the mean over all of them and `perplexity` its exponential; losses[i] are those of prompt i, fp32. Where
    prompts shared passes `mode` is "fast", and `largest_difference` is the largest difference between losses computed
    together and alone; `notes` say why none were shared."""

    _view = "losses_view"
    ending = ".losses.djinn"
    named = "file of losses"
    _words: ClassVar[Mapping[str, str]] = {"values": "losses"}
    replies: Sequence[Scored]

    def __post_init__(self) -> None:
        replies = self.replies = tuple(self.replies)
        self.tokens = self._lines = tuple(prompt for reply in replies for prompt in reply.tokens)
        self.values = np.concatenate([arrays.to_numpy(reply.values) for reply in replies])
        self.mode: Mode = "fast" if any(reply.mode == "fast" for reply in replies) else "exact"
        differences = [d for reply in replies if (d := reply.largest_difference) is not None]
        self.largest_difference: float | None = max(differences, default=None)
        self.notes: tuple[str, ...] = tuple(dict.fromkeys(note for reply in replies for note in reply.notes))
        self._starts = [0, *accumulate(len(prompt) - 1 for prompt in self.tokens)]

    def check(self) -> None:
        """Raise ValueError where the losses do not match the tokens."""
        if [(sum(map(len, one.tokens)) - len(one.tokens),) for one in self.replies] != [
            one.values.shape for one in self.replies
        ]:
            raise ValueError("its losses are not those of its tokens")
        if any(one.values.dtype != "float32" for one in self.replies):
            raise ValueError("its losses are not float32")

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the losses follow from: the circumstances of every measurement, and the mode and the seed."""
        return {**super().recipe, "mode": self.mode, "seed": self.replies[0].seed}

    def _request_of(self, reply: Scored) -> Score:
        return Score(session=ANY_SESSION, prompts=reply.tokens, mode=reply.mode, seed=reply.seed)

    def notes_on(self, same: bool) -> Sequence[str]:
        """Return a note if prompts shared passes."""
        return [result_files.SHARED] if self.mode == "fast" and not same else []

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the prompt and the position of the token with this loss."""
        prompt = bisect.bisect_right(self._starts, index[0]) - 1
        return {"prompt": prompt, "position": index[0] - self._starts[prompt] + 1}

    @property
    def loss(self) -> float:
        """The mean loss of a token, in nats."""
        return float(self.values.mean(dtype="float64"))

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss; infinite above the largest number."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, prompt: int) -> np.ndarray[Any, Any]:
        at = range(len(self))[prompt]
        part: np.ndarray[Any, Any] = self.values[self._starts[at] : self._starts[at + 1]]
        return part

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        return (self[prompt] for prompt in range(len(self)))

    def columns(self) -> dict[str, list[Any]]:
        """Return the losses as lists by column: the prompt, the position and the id of each token, and its loss."""
        places = [(n, at, token) for n, prompt in enumerate(self.tokens) for at, token in enumerate(prompt) if at]
        return {**tables.in_columns(("prompt", "position", "token"), places), "loss": self.values.tolist()}

    def __repr__(self) -> str:
        of = f"{len(self)} prompts" if len(self) > 1 else "1 prompt"
        return f"Loss {self.loss:.4f} a token, perplexity {self.perplexity:.4g}: {len(self.values)} tokens of {of}"


@arguments.typed
def loss(
    engine: RemoteEngine, /, prompts: object, *, mode: Mode = "exact", seed: int = 0, adapter: str | None = None
) -> Losses:
    """Return the loss of each token of the prompts (texts, token ids or a pathlib.Path, as in `collect`), and their
    mean and perplexity. Each prompt runs in a pass of its own; `fast` runs prompts together, and some, chosen by
    `seed`, again alone (`largest_difference`). `adapter` names an adapter to use. UsageError for a prompt of one token.

    >>> losses = engine.loss(["The capital of France is Paris.", "The capital of France is Rome."])
    >>> [values.shape for values in losses], bool(losses[0].mean() < losses[1].mean())
    ([(6,), (6,)], True)
    """
    return loss_of(engine.channel, prompts, mode=mode, seed=seed, adapter=adapter)


def loss_of(
    channel: Channel,
    prompts: object,
    rules_of: str | None = None,
    *,
    mode: Mode = "exact",
    seed: int = 0,
    adapter: str | None = None,
) -> Losses:
    """Return the losses of prompts, each in its own pass or in shared passes, under the rules of the session
    `rules_of`."""
    found: list[Scored] = []
    request_of = partial(Score, rules_of=rules_of, mode=mode, seed=arguments.checked_seed(seed))
    with interrupts.interruptible("The measurement", lambda: _kept(found)):
        try:
            _score(channel, prompts, request_of, found, adapter)
        except DjinnError as error:
            if not found:
                raise
            said, losses = _kept(found)
            raise MeasurementEnded(f"The measurement ended before its last prompt: {error} {said}", losses) from error
    return Losses(found)


def _score(
    channel: Channel, prompts: object, request_of: Callable[..., Score], found: list[Scored], adapter: str | None
) -> None:
    """Add the losses of some prompts at a time to those `found`."""
    parts = _parts(tokenized(channel, given_prompts(prompts)))
    part = next(parts, None)
    if part is None:
        raise UsageError("There are no prompts to measure the loss of.")
    with likeness.temporary_session(channel, "score", adapter) as session:
        while part is not None:
            first = sum(len(reply.tokens) for reply in found)
            far(f"{first:,}{of_how_many(prompts)} prompts")
            found.append(ask_for(channel, request_of(session=session, prompts=part, first=first)))
            part = next(parts, None)


def _kept(found: Sequence[Scored]) -> tuple[str, Losses | None]:
    losses = Losses(found) if found else None
    return "" if losses is None else f"Of the first prompts it had found: {losses}.", losses


def _parts(prompts: Iterable[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    here: list[tuple[int, ...]] = []
    for number, prompt in enumerate(prompts):
        require_two(prompt, number)
        if here and sum(map(len, here)) + len(prompt) > ASKED_TOKENS:
            yield tuple(here)
            here = []
        here.append(prompt)
    if here:
        yield tuple(here)


def require_two(tokens: tuple[int, ...], number: int) -> None:
    if len(tokens) < 2:
        raise UsageError(
            f"Prompt {number} (counted from 0) has one token, and a loss is of those that follow; leave it out."
        )


# `dj.splice`: the loss of a model with an SAE's reconstruction in place of a point, beside the ablation's. It requests
# three losses, in sessions of its own: the model's; under a rule of the module that keeps features and drops the error
# term; and under one that sets the point to zero.

WITHOUT_ERROR: Final = "spliced"  # the module's name during the measurement
STOOD: Final = ("model", "spliced", "zeroed")


class Splice(result.Result):
    """The losses of some prompts: of the `model`, with the reconstruction of `module` in place of its point, and with
    the point set to zero. `values` [3, tokens] are those of each token, in this order."""

    _view = "splice_view"
    ending = ".splice.djinn"
    named = "file of a splice"
    model: Losses
    spliced: Losses
    zeroed: Losses
    module: str
    at: str
    modules: tuple[AddedModuleDescription, ...]

    def __post_init__(self) -> None:
        self.tokens = self._lines = self.model.tokens
        self.values: np.ndarray[Any, Any] = np.stack([one.values for one in (self.model, self.spliced, self.zeroed)])

    @property
    def _replies(self) -> tuple[Any, ...]:
        return self.model._replies

    def check(self) -> None:
        """Raise ValueError where the losses are of different prompts, or no modules are named."""
        if len({one.tokens for one in (self.model, self.spliced, self.zeroed)}) > 1:
            raise ValueError("its losses are of different prompts")
        if not self.modules:
            raise ValueError("it names no modules")

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the losses follow from: every measurement's circumstances, and the modules with their files'
        digests."""
        files = {f"{one.name} at {one.at}": one.digest for one in self.modules}
        return {**super().recipe, "module": self.module, "modules": files}

    def again(self, channel: Channel) -> Splice:
        """Return the same splice, measured again. UsageError where its modules are not added here as before."""
        likeness.require_modules(channel, self.modules)
        return _measured(channel, self.module, self.tokens)

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return what was at the point, and the prompt and the position of the token with this loss."""
        return {"with": STOOD[index[0]], **self.model.place_of(index[1:])}

    @property
    def recovered(self) -> float:
        """The share of the ablation's loss increase that the reconstruction avoids: 1 where it is as good as the
        point's own value; NaN where ablation loses nothing."""
        lost = self.zeroed.loss - self.model.loss
        return (self.zeroed.loss - self.spliced.loss) / lost if lost else float("nan")

    def columns(self) -> dict[str, list[Any]]:
        """Return the losses as lists by column: the value at the point, the loss per token, the perplexity."""
        named = (("model", self.model), ("spliced", self.spliced), ("zeroed", self.zeroed))
        return tables.in_columns(("with", "loss", "perplexity"), [(name, of.loss, of.perplexity) for name, of in named])

    def __repr__(self) -> str:
        return (
            f"{self.module} in place of {self.at}: loss {self.spliced.loss:.4f}, of the model {self.model.loss:.4f}, "
            f"with {self.at} at zero {self.zeroed.loss:.4f}; {100 * self.recovered:.1f} % recovered"
        )


@arguments.typed
def splice(engine: RemoteEngine, module: str, prompts: object) -> Splice:
    """Measure three losses: of the model, with the reconstruction of an added SAE or transcoder in place of the point
    that it writes (without the error term), and with the point at zero. `module` is its site, such as "sae.4", or a
    name, such as "clt", for all its layers at once, as in a cross-layer transcoder. Prompts are as in `engine.loss`.
    Its folder is read again. UnknownSite; UsageError for a module that writes nothing back; MeasurementEnded and
    WorkInterrupted, whose `kept` has the complete losses by name.

    >>> engine.add_module("sae", sae_folder, at="resid_post.4").site
    'sae.4'
    >>> found = dj.splice(engine, "sae.4", ["The capital of France is Paris.", "People in Italy speak Italian."])
    >>> found.model.loss < found.spliced.loss, found.recovered < 1  # an SAE of random numbers
    (True, True)
    """
    return _measured(engine.channel, module, tuple(given_prompts(prompts)))


def _measured(channel: Channel, module: str, prompts: Sequence[object]) -> Splice:
    told = _added(channel, module)
    written = [one.writes or one.at for one in told]
    measures: dict[str, Callable[[], Losses]] = {
        "zeroed": lambda: _under(channel, written, zero(), prompts),
        "model": lambda: loss_of(channel, prompts),
        "spliced": lambda: _spliced(channel, told, prompts),
    }
    done: dict[str, Losses] = {}
    for name, measure in measures.items():
        done[name] = _whole(name, measure, done)
    return Splice(module=module, at=", ".join(written), modules=tuple(told), **done)  # type: ignore[arg-type]  # the three losses


def _whole(name: str, measure: Callable[[], Losses], done: Mapping[str, Losses]) -> Losses:
    """Return a loss of all prompts. If it ends early, the error has the complete losses that were `done`, by name,
    without the partial one."""
    kept = dict(done) or None
    there = f"Whole are, as `kept` of this error: {', '.join(done) or 'none'}."
    try:
        return measure()
    except interrupts.WorkInterrupted:
        raise interrupts.WorkInterrupted(
            f"The measurement was interrupted in the loss {name!r} of three. {there}", kept
        ) from None
    except MeasurementEnded as error:
        raise MeasurementEnded(f"The loss {name!r} of three: {error.__cause__ or error} {there}", kept) from error


def _added(channel: Channel, module: str) -> list[AddedModuleDescription]:
    """Return the added module at a site, or those of a name."""
    there = ask_for(channel, ask.ListAddedModules()).modules
    found = [one for one in there if module in (one.site, one.name)]
    if not found:
        known = ", ".join(one.site for one in there) or "none"
        raise UnknownSite(f"There is no added module {shown(module)}; there are: {known}.")
    for one in found:
        if one.why_not_edited is not None:
            raise UsageError(f"{one.site} cannot be spliced: {one.why_not_edited}")
        if one.kind == "cross_layer_transcoder" and module == one.site:
            raise UsageError(
                f"{module} is a layer of a cross-layer transcoder, whose MLPs are made by all layers together: splice "
                f"them all, as {one.name}."
            )
    return found


def _spliced(channel: Channel, told: Sequence[AddedModuleDescription], prompts: object) -> Losses:
    """Return the losses with the reconstructions: of the modules themselves if they leave the error term out, else of
    temporary copies that do."""
    again: list[str] = []
    try:
        sites = []
        for one in told:
            sites.append(_without_error(channel, one, again) if one.error_term else one.site)
        return _under(channel, sites, scale(1.0), prompts)
    finally:
        for site in again:
            remove_module(channel, site)


def _without_error(channel: Channel, one: AddedModuleDescription, again: list[str]) -> str:
    """Add a module once more, without its error term, and return its site, which is added to `again`."""
    added = add_module(channel, WITHOUT_ERROR, one.folder, one.at, error_term=False)
    again.append(added.site)
    if added.digest != one.digest:
        raise UsageError(f"{one.folder} has other files now than {one.site} was added from: add it again.")
    return added.site


def _under(channel: Channel, sites: Sequence[str], edit: object, prompts: object) -> Losses:
    """Return the losses of prompts under a rule at each site."""
    with likeness.temporary_session(channel, "splice") as name:
        for site in sites:
            RemoteSession(channel, name).steer(site, edit)
        return loss_of(channel, prompts, name)
