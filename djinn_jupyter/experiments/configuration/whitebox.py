"""The files of `whitebox` and `pressure`: the original system's experiment 3, every key enforced."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from djinn_jupyter.errors import UsageError
from djinn_jupyter.experiments.configuration.section import (
    Gigabytes,
    Layer,
    Name,
    OwnDtype,
    Positive,
    Seconds,
    Section,
)

Percent = Annotated[float, Meta(gt=0, le=100)]


class Model(Section, frozen=True, kw_only=True):
    name: Annotated[Name, Meta(description="`demo`, a folder or a hub name.")]
    num_layers: Annotated[Positive, Meta(description="Layers; checked against the model before anything runs.")]
    source: Annotated[
        Literal["transformers"], Meta(description="Whose implementation; only transformers' own is served.")
    ] = "transformers"
    dtype: OwnDtype = None
    page_positions: Annotated[
        Positive | None, Meta(description="Positions of a page; small ones make small models share and swap.")
    ] = None


class BreakpointSection(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Whether runs are stopped and compared at all.")] = True
    layers: Annotated[
        tuple[Layer, ...],
        Meta(min_length=1, description="Layers after which the pass is stopped, each in every trial."),
    ]


class Inference(Section, frozen=True, kw_only=True):
    input_length: Annotated[Positive, Meta(description="Tokens of the prompt.")]
    context_tokens: Annotated[
        Positive,
        Meta(description="Positions of the context that prompt tokens are compared over; at most input_length."),
    ]
    token_accuracy_threshold: Annotated[
        Percent, Meta(description="Least share of equal tokens in percent; ours must besides be bitwise equal.")
    ]
    continuation_tokens: Annotated[
        int, Meta(ge=2, description="Tokens generated after the resume and compared too; the first is stopped at.")
    ] = 16


class Steering(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Whether the steering part runs.")] = True
    modification_type: Annotated[Literal["scale"], Meta(description="The edit at the steering layer.")] = "scale"
    modification_factor: Annotated[float, Meta(description="The factor of the edit; 1 would change nothing.")]
    steering_layer: Annotated[Layer, Meta(description="The layer whose output is edited.")]


class Concurrent(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Whether a second request runs while the first is stopped.")] = True
    request_b_during_pause: Annotated[
        bool, Meta(description="Whether request B runs to its end within the pause; else the pause is only held.")
    ] = True
    pause_duration_seconds: Annotated[Seconds, Meta(description="How long request A stays stopped at least.")]


class MemoryPressure(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Whether the pressure experiment runs last on this file.")] = False
    num_sessions: Annotated[Positive, Meta(description="Sessions alive at the same time.")] = 50
    session_pause_layer: Annotated[Layer, Meta(description="The layer after which each session is stopped.")]


class Experiment(Section, frozen=True, kw_only=True):
    num_trials: Annotated[Positive, Meta(description="How often each layer is stopped at.")]
    breakpoints: BreakpointSection
    inference: Inference
    activation_steering: Steering | None = None
    concurrent_demo: Concurrent | None = None
    memory_pressure_test: MemoryPressure | None = None


class Validation(Section, frozen=True, kw_only=True):
    require_output_equivalence: Annotated[bool, Meta(description="Fail unless every resumed run is bitwise equal.")] = (
        True
    )
    require_steering_effect: Annotated[bool, Meta(description="Fail unless steering changed the output.")] = False
    require_concurrent_success: Annotated[bool, Meta(description="Fail unless request B ended within the pause.")] = (
        False
    )
    require_memory_pressure_success: Annotated[
        bool, Meta(description="Fail unless the pressure experiment passed.")
    ] = False


class Hardware(Section, frozen=True, kw_only=True):
    vram_limit_gb: Annotated[
        Gigabytes | None, Meta(description="A smaller card than there is; enforced and reported as imposed.")
    ] = None
    host_limit_gb: Annotated[Gigabytes | None, Meta(description="Host memory for what leaves the card.")] = None


class Whitebox(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment whitebox`, and of `pressure`."""

    model: Model
    experiment: Experiment
    validation: Validation
    hardware: Hardware = Hardware()
    duration: Annotated[Seconds, Meta(description="Minutes after which the run is stopped; a hard limit.")]
    output_dir: Annotated[Name, Meta(description="The folder of the results.")]

    def check(self) -> None:
        self._check_layers()
        inference, steering = self.experiment.inference, self.experiment.activation_steering
        if inference.context_tokens > inference.input_length:
            raise UsageError(
                f"experiment.inference.context_tokens is {inference.context_tokens} and input_length only "
                f"{inference.input_length}; compare at most as many positions as the prompt has."
            )
        if steering is not None and steering.enabled and steering.modification_factor == 1:
            raise UsageError("experiment.activation_steering.modification_factor of 1 changes nothing; name another.")
        needed = {
            "require_steering_effect": steering is not None and steering.enabled,
            "require_concurrent_success": _enabled(self.experiment.concurrent_demo),
            "require_memory_pressure_success": _enabled(self.experiment.memory_pressure_test),
            "require_output_equivalence": self.experiment.breakpoints.enabled,
        }
        for key, enabled in needed.items():
            if getattr(self.validation, key) and not enabled:
                raise UsageError(f"validation.{key} is set, and the part that it judges is not enabled.")

    def _check_layers(self) -> None:
        layers, stops = self.model.num_layers, self.experiment.breakpoints.layers
        if len(set(stops)) != len(stops):
            raise UsageError(f"experiment.breakpoints.layers names a layer twice: {list(stops)}.")
        named = {f"experiment.breakpoints.layers[{i}]": n for i, n in enumerate(stops)}
        if self.experiment.activation_steering is not None:
            named["experiment.activation_steering.steering_layer"] = self.experiment.activation_steering.steering_layer
        if self.experiment.memory_pressure_test is not None:
            pause = self.experiment.memory_pressure_test.session_pause_layer
            named["experiment.memory_pressure_test.session_pause_layer"] = pause
        for key, layer in named.items():
            if layer >= layers:
                raise UsageError(f"{key} is {layer}; the model has the layers 0 to {layers - 1}.")


def _enabled(section: Concurrent | MemoryPressure | None) -> bool:
    return section is not None and section.enabled
