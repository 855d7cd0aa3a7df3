"""The file of `streaming`: the models, their share of the device, and how often each side is measured."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_evaluation.configuration.section import Gigabytes, Name, OwnDtype, Positive, Section
from djinn_jupyter.errors import UsageError

Share = Annotated[float, Meta(gt=0, lt=1)]


class Streaming(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment streaming`."""

    model: Annotated[
        Name | None,
        Meta(description="A model with weights of its own, in place of the shapes: `demo`, a folder or a hub name."),
    ] = None
    shapes: Annotated[
        tuple[Name, ...], Meta(description="Architectures that get random weights, one after the other.")
    ] = ()
    divide_widths: Annotated[
        Positive,
        Meta(description="Divides the widths and the vocabulary of the shapes, those above weights_gb by more."),
    ] = 1
    layers: Annotated[
        Positive | None, Meta(description="Layers of each shape; else its own, or as many as the host has room for.")
    ] = None
    weights_gb: Annotated[
        Gigabytes | None, Meta(description="Most that the weights of a shape may take; else what they take.")
    ] = None
    dtype: OwnDtype = None
    device_share: Annotated[Share, Meta(description="Part of the weights' bytes that the device may hold, with pages.")]
    prompt_tokens: Annotated[Positive, Meta(description="Tokens of the prompt.")] = 16
    new_tokens: Annotated[int, Meta(ge=2, description="Tokens that each side generates each time.")]
    repeat: Annotated[Positive, Meta(description="Repetitions of every side; six or more allow a verdict.")] = 6
    samples: Annotated[Positive, Meta(description="Prompts whose logits are compared with the reference's.")] = 3
    least_of_both: Annotated[
        float, Meta(gt=0, le=1, description="Bar: the speed, of what computing and copying at once attain.")
    ] = 0.9
    cores_first: Annotated[
        bool, Meta(description="Give all sides the cores before other programs, where the kernel allows it.")
    ] = False
    skip_offloads: Annotated[bool, Meta(description="Leave out accelerate and DeepSpeed.")] = False
    output_dir: Annotated[Name, Meta(description="The folder of the results.")]

    def check(self) -> None:
        if self.model is None and not self.shapes:
            raise UsageError("There is nothing to stream; name a model, or at least one of shapes.")
