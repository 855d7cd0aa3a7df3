"""`dj.splice`: the loss of a model where an SAE's reconstruction takes the place of a point, beside the ablation's.

It asks for three losses, in sessions of its own: the model's; under a rule of the module that leaves features as they
are and the error term out; and under one that sets the point to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.added_modules import add_module, remove_module
from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.edits import scale, zero
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.frames import in_columns
from djinn_jupyter.client.interrupts import WorkInterrupted
from djinn_jupyter.client.likeness import require_modules
from djinn_jupyter.client.prompts import given_prompts
from djinn_jupyter.client.result import Result
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.errors import MeasurementEnded, UnknownSite, UsageError
from djinn_jupyter.methods.datasets.api import scoring
from djinn_jupyter.methods.datasets.api.scoring import Losses
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.module_form import AddedModuleDescription
from djinn_jupyter.wire.texts import shown

if TYPE_CHECKING:
    import numpy as np

WITHOUT_ERROR: Final = "spliced"  # the name of the module while it is measured
STOOD: Final = ("model", "spliced", "zeroed")


class Splice(Result):
    """The losses of some prompts: of the `model`, with the reconstruction of `module` in place of its point, and with
    the point set to zero. `values` [3, tokens] are those of each token, in this order."""

    ending = ".splice.djinn"
    named = "file of a splice"
    model: Losses
    spliced: Losses
    zeroed: Losses
    module: str
    at: str
    modules: tuple[AddedModuleDescription, ...]

    def __post_init__(self) -> None:
        import numpy as np

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
        """All that the losses follow from: as of every measurement, and the modules with the digests of their files."""
        files = {f"{one.name} at {one.at}": one.digest for one in self.modules}
        return {**super().recipe, "module": self.module, "modules": files}

    def again(self, channel: Channel) -> Splice:
        """Return the same splice, measured anew. UsageError where its modules are not added here as they were."""
        require_modules(channel, self.modules)
        return _measured(channel, self.module, self.tokens)

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return what stood at the point, and the prompt and the position of the token with this loss."""
        return {"with": STOOD[index[0]], **self.model.place_of(index[1:])}

    @property
    def recovered(self) -> float:
        """The share of what ablation loses that the reconstruction keeps: 1 where it is as good as the point's own
        value; NaN where ablation loses nothing."""
        lost = self.zeroed.loss - self.model.loss
        return (self.zeroed.loss - self.spliced.loss) / lost if lost else float("nan")

    def columns(self) -> dict[str, list[Any]]:
        """Return the losses as lists by column: what stands at the point, the mean loss of a token, and the
        perplexity."""
        named = (("model", self.model), ("spliced", self.spliced), ("zeroed", self.zeroed))
        return in_columns(("with", "loss", "perplexity"), [(name, of.loss, of.perplexity) for name, of in named])

    def __repr__(self) -> str:
        return (
            f"{self.module} in place of {self.at}: loss {self.spliced.loss:.4f}, of the model {self.model.loss:.4f}, "
            f"with {self.at} at zero {self.zeroed.loss:.4f}; {100 * self.recovered:.1f} % recovered"
        )


@typed
def splice(engine: RemoteEngine, module: str, prompts: object) -> Splice:
    """Measure the loss with the reconstruction of an added SAE or transcoder in place of the point that it writes,
    error term left out, beside the loss of the model and the one with the point at zero. `module` is where it is read,
    such as "sae.4", or a name, such as "clt", for those of all its layers at once, as of a cross-layer transcoder.
    Prompts are as in `engine.loss`. Its folder is read again. UnknownSite; UsageError for a module that writes nothing
    back; MeasurementEnded and WorkInterrupted, whose `kept` has the whole losses by name.

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
        "model": lambda: scoring.loss_of(channel, prompts),
        "spliced": lambda: _spliced(channel, told, prompts),
    }
    done: dict[str, Losses] = {}
    for name, measure in measures.items():
        done[name] = _whole(name, measure, done)
    return Splice(module=module, at=", ".join(written), modules=tuple(told), **done)  # type: ignore[arg-type]  # the three losses


def _whole(name: str, measure: Callable[[], Losses], done: Mapping[str, Losses]) -> Losses:
    """Return a loss of all prompts. Where it is cut short, the error has the whole ones that were `done` by name, and
    not the part of one that nothing is compared with."""
    kept = dict(done) or None
    there = f"Whole are, as `kept` of this error: {', '.join(done) or 'none'}."
    try:
        return measure()
    except WorkInterrupted:
        raise WorkInterrupted(f"The measurement was interrupted in the loss {name!r} of three. {there}", kept) from None
    except MeasurementEnded as error:
        raise MeasurementEnded(f"The loss {name!r} of three: {error.__cause__ or error} {there}", kept) from error


def _added(channel: Channel, module: str) -> list[AddedModuleDescription]:
    """Return the added module of a site, or those of a name."""
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
    """Return the losses with the reconstructions: of the modules themselves where they leave the error term out, else
    of some that do and are there meanwhile."""
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
    """Add a module once more, without its error term, and return its site, which is noted in `again`."""
    added = add_module(channel, WITHOUT_ERROR, one.folder, one.at, error_term=False)
    again.append(added.site)
    if added.digest != one.digest:
        raise UsageError(f"{one.folder} has other files now than {one.site} was added from: add it again.")
    return added.site


def _under(channel: Channel, sites: Sequence[str], edit: object, prompts: object) -> Losses:
    """Return the losses of prompts under a rule at each site."""
    with temporary_session(channel, "splice") as name:
        for site in sites:
            RemoteSession(channel, name).steer(site, edit)
        return scoring.loss_of(channel, prompts, name)
