"""The files of `whitebox` and `pressure`: the original system's experiment 3, every key enforced."""

from __future__ import annotations

from typing import Annotated, Literal

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

Percent = Annotated[float, Meta(gt=0, le=100)]


class Model(Section, frozen=True, kw_only=True):
    name: Annotated[Name, Meta(description="`demo`, a folder or a hub name.")]
    num_layers: Annotated[
        Positive | None, Meta(description="Layers; where given, checked against the model before anything runs.")
    ] = None
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
    input_length: Annotated[Positive, Meta(description="Tokens of the prompt.")] = 512
    context_tokens: Annotated[
        Positive | None,
        Meta(description="Last positions of the prompt that tokens are compared over; all of them where not given."),
    ] = None
    token_accuracy_threshold: Annotated[
        Percent, Meta(description="Least share of equal tokens in percent; ours must besides be bitwise equal.")
    ] = 95.0
    continuation_tokens: Annotated[
        int, Meta(ge=2, description="Tokens generated after the resume and compared too; the first is stopped at.")
    ] = 16

    @property
    def compared(self) -> int:
        """The number of the prompt's last positions that are compared."""
        return self.input_length if self.context_tokens is None else self.context_tokens


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
    pause_duration_seconds: Annotated[Seconds, Meta(description="How long paused sessions stand at least.")] = 5.0
    paused_sessions: Annotated[Positive, Meta(description="Sessions that stand paused at once, on each side.")] = 4
    idle_seconds: Annotated[
        Seconds,
        Meta(description="Idle time after which paused sessions leave the device; more than all of them take to stop."),
    ] = 5.0
    until_full_gb: Annotated[
        Gigabytes | None,
        Meta(description="Memory of weights and stops in which each side stops sessions until it is full; else none."),
    ] = None
    until_full_sessions: Annotated[Positive, Meta(description="Sessions that it stops at most.")] = 64


class MemoryPressure(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Whether the pressure experiment runs last on this file.")] = False
    num_sessions: Annotated[Positive, Meta(description="Sessions alive at the same time.")] = 50
    session_pause_layer: Annotated[Layer, Meta(description="The layer after which each session is stopped.")]


class Experiment(Section, frozen=True, kw_only=True):
    num_trials: Annotated[Positive, Meta(description="How often each layer is stopped at.")] = 3
    overhead_pairs: Annotated[
        Positive, Meta(description="Pairs of a run with a stop and one without; an interval of 95 % takes six.")
    ] = 12
    breakpoints: BreakpointSection
    inference: Inference = Inference()
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
    validation: Validation = Validation()
    hardware: Hardware = Hardware()
    duration: Annotated[Seconds, Meta(description="Minutes after which the run is stopped; a hard limit.")] = 180.0
    output_dir: Annotated[Name, Meta(description="The folder of the results.")] = "results/experiment_3"

    def check(self) -> None:
        self._check_layers()
        inference, steering = self.experiment.inference, self.experiment.activation_steering
        if inference.compared > inference.input_length:
            raise UsageError(
                f"experiment.inference.context_tokens is {inference.compared} and input_length only "
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

    def layers_named(self) -> dict[str, int]:
        """Return each key that names a layer, and that layer."""
        named = {f"experiment.breakpoints.layers[{i}]": n for i, n in enumerate(self.experiment.breakpoints.layers)}
        if self.experiment.activation_steering is not None:
            named["experiment.activation_steering.steering_layer"] = self.experiment.activation_steering.steering_layer
        if self.experiment.memory_pressure_test is not None:
            pause = self.experiment.memory_pressure_test.session_pause_layer
            named["experiment.memory_pressure_test.session_pause_layer"] = pause
        return named

    def _check_layers(self) -> None:
        layers, stops = self.model.num_layers, self.experiment.breakpoints.layers
        if len(set(stops)) != len(stops):
            raise UsageError(f"experiment.breakpoints.layers names a layer twice: {list(stops)}.")
        for key, layer in self.layers_named().items():
            if layers is not None and layer >= layers:
                raise UsageError(f"{key} is {layer}; the model has the layers 0 to {layers - 1}.")


def _enabled(section: Concurrent | MemoryPressure | None) -> bool:
    return section is not None and section.enabled
