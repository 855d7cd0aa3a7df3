"""The files of the experiments: every key with its kind, bounds and explanation."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from djinn_evaluation.configuration.reading import (
    Dtype,
    Gigabytes,
    Layer,
    Name,
    OwnDtype,
    Positive,
    Seconds,
    Section,
    about,
)
from djinn_jupyter.errors import UsageError

Percent = Annotated[float, Meta(gt=0, le=100)]


class Model(Section, frozen=True, kw_only=True):
    name: Annotated[Name, about("`demo`, a folder or a hub name.")]
    num_layers: Annotated[
        Positive | None, about("Layers; where given, checked against the model before anything runs.")
    ] = None
    source: Annotated[Literal["transformers"], about("Whose implementation; only transformers' own is served.")] = (
        "transformers"
    )
    dtype: OwnDtype = None
    page_positions: Annotated[
        Positive | None, about("Positions of a page; small ones make small models share and swap.")
    ] = None


class BreakpointSection(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, about("Whether runs are stopped and compared at all.")] = True
    layers: Annotated[
        tuple[Layer, ...], about("Layers after which the pass is stopped, each in every trial.", min_length=1)
    ]


class Inference(Section, frozen=True, kw_only=True):
    input_length: Annotated[Positive, about("Tokens of the prompt.")] = 512
    context_tokens: Annotated[
        Positive | None,
        about("Last positions of the prompt that tokens are compared over; all of them where not given."),
    ] = None
    token_accuracy_threshold: Annotated[
        Percent, about("Least share of equal tokens in percent; ours must besides be bitwise equal.")
    ] = 95.0
    continuation_tokens: Annotated[
        int, about("Tokens generated after the resume and compared too; the first is stopped at.", ge=2)
    ] = 16

    @property
    def compared(self) -> int:
        """The number of the prompt's last positions that are compared."""
        return self.input_length if self.context_tokens is None else self.context_tokens


class Steering(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, about("Whether the steering part runs.")] = True
    modification_type: Annotated[Literal["scale"], about("The edit at the steering layer.")] = "scale"
    modification_factor: Annotated[float, about("The factor of the edit; 1 would change nothing.")]
    steering_layer: Annotated[Layer, about("The layer whose output is edited.")]


class Concurrent(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, about("Whether a second request runs while the first is stopped.")] = True
    request_b_during_pause: Annotated[
        bool, about("Whether request B runs to its end within the pause; else the pause is only held.")
    ] = True
    pause_duration_seconds: Annotated[Seconds, about("How long paused sessions stand at least.")] = 5.0
    paused_sessions: Annotated[Positive, about("Sessions that stand paused at once, on each side.")] = 4
    idle_seconds: Annotated[
        Seconds, about("Idle time after which paused sessions leave the device; more than all of them take to stop.")
    ] = 5.0
    until_full_gb: Annotated[
        Gigabytes | None,
        about("Memory of weights and stops in which each side stops sessions until it is full; else none."),
    ] = None
    until_full_sessions: Annotated[Positive, about("Sessions that it stops at most.")] = 64


class MemoryPressure(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, about("Whether the pressure experiment runs last on this file.")] = False
    num_sessions: Annotated[Positive, about("Sessions alive at the same time.")] = 50
    session_pause_layer: Annotated[Layer, about("The layer after which each session is stopped.")]


class Experiment(Section, frozen=True, kw_only=True):
    num_trials: Annotated[Positive, about("How often each layer is stopped at.")] = 3
    overhead_pairs: Annotated[
        Positive, about("Pairs of a run with a stop and one without; an interval of 95 % takes six.")
    ] = 12
    breakpoints: BreakpointSection
    inference: Inference = Inference()
    activation_steering: Steering | None = None
    concurrent_demo: Concurrent | None = None
    memory_pressure_test: MemoryPressure | None = None


class Validation(Section, frozen=True, kw_only=True):
    require_output_equivalence: Annotated[bool, about("Fail unless every resumed run is bitwise equal.")] = True
    require_steering_effect: Annotated[bool, about("Fail unless steering changed the output.")] = False
    require_concurrent_success: Annotated[bool, about("Fail unless request B ended within the pause.")] = False
    require_memory_pressure_success: Annotated[bool, about("Fail unless the pressure experiment passed.")] = False


class Hardware(Section, frozen=True, kw_only=True):
    vram_limit_gb: Annotated[
        Gigabytes | None, about("A smaller card than there is; enforced and reported as imposed.")
    ] = None
    host_limit_gb: Annotated[Gigabytes | None, about("Host memory for what leaves the card.")] = None


class Whitebox(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment whitebox`, and of `pressure`."""

    model: Model
    experiment: Experiment
    validation: Validation = Validation()
    hardware: Hardware = Hardware()
    duration: Annotated[Seconds, about("Minutes after which the run is stopped; a hard limit.")] = 180.0
    output_dir: Annotated[Name, about("The folder of the results.")] = "results/experiment_3"

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
            "require_steering_effect": runs(steering),
            "require_concurrent_success": runs(self.experiment.concurrent_demo),
            "require_memory_pressure_success": runs(self.experiment.memory_pressure_test),
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


class ResumeLatency(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment resume-latency`."""

    model: Annotated[Name, about("`demo`, a folder or a hub name.")]
    dtype: OwnDtype = None
    layers: Annotated[tuple[Layer, ...], about("Layers that the pass is stopped after.", min_length=1)]
    max_length: Annotated[Positive, about("Tokens of the prompt.")]
    warmup: Annotated[int, about("Resumes that are not counted, for each layer and side.", ge=0)] = 2
    repeat: Annotated[Positive, about("Resumes that are counted; their verdict takes six.")] = 10
    skip_recompute: Annotated[bool, about("Leave out running the prompt again from its start.")] = False
    skip_offload: Annotated[bool, about("Leave out manual offload of the hidden state.")] = False
    skip_djinn: Annotated[bool, about("Leave out ours.")] = False
    output_dir: Annotated[Name, about("The folder of the results.")]

    def check(self) -> None:
        if self.skip_recompute and self.skip_offload and self.skip_djinn:
            raise UsageError("All three sides are skipped; leave at least one in.")
        if len(set(self.layers)) != len(self.layers):
            raise UsageError(f"layers names a layer twice: {list(self.layers)}.")


class CheckpointCost(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment checkpoint-cost`."""

    model: Annotated[Name, about("`demo`, a folder or a hub name.")]
    dtype: OwnDtype = None
    layer: Annotated[Layer, about("The layer after which session A stops.")]
    max_length: Annotated[Positive, about("Tokens of A's prompt.")]
    neighbour_tokens: Annotated[Positive, about("Tokens that the neighbour B generates in each part.")] = 64
    stop_interval_seconds: Annotated[Seconds, about("A stops once in so many seconds.")] = 1.0
    repeat: Annotated[Positive, about("How often each part is measured; its verdict takes six.")] = 6
    host_limit_gb: Annotated[Gigabytes | None, about("Host memory for what is written through.")] = None
    output_dir: Annotated[Name, about("The folder of the results.")]


Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Bound = Annotated[float, Meta(gt=0)]
TESTS = ("logit_equivalence", "pcie_flatline", "agent_sleep_resume")


class Heading(Section, frozen=True, kw_only=True):
    name: Annotated[Name, about("Written into the summary.")]
    description: Annotated[str, about("Written into the report.")] = ""
    version: Annotated[Name | float, about("Of the file's format; 1.0.")] = "1.0"


class Single(Section, frozen=True, kw_only=True):
    """The keys that every test has."""

    enabled: Annotated[bool, about("Whether this test runs.")] = True
    model_id: Annotated[Name, about("`demo`, a folder or a hub name.")]
    dtype: Annotated[Dtype, about("The dtype that the model is served in.")]


class LogitEquivalence(Single, frozen=True, kw_only=True):
    num_samples: Annotated[Positive, about("Prompts; each goes through the ring in several passes.")]
    tolerance_norm: Annotated[Bound, about("Most that the norm of the difference may be, where tolerances decide.")]
    tolerance_max_diff: Annotated[Bound, about("Most that any logit may differ, where tolerances decide.")]
    pass_if_predictions_match: Annotated[
        bool, about("On another device: whether the five most likely tokens decide, and not the tolerances.")
    ] = True


class RandomWeights(Section, frozen=True, kw_only=True):
    """The size of a model whose weights are drawn, large enough that its layers take milliseconds to copy."""

    divide_widths: Annotated[
        Positive, about("Divides the widths of the architecture that model_id names; weights are drawn.")
    ]
    layers: Annotated[Positive | None, about("Its layers; else its own, or as many as fit.")] = None


class PcieFlatline(Single, frozen=True, kw_only=True):
    random_weights: RandomWeights | None = None  # else model_id is read
    ring_buffer_gb: Annotated[
        Gigabytes | None, about("Most device memory for weights; else ring_buffer.capacity_gb.")
    ] = None
    vram_limit_gb: Annotated[Gigabytes | None, about("A smaller card, imposed; else hardware.vram_limit_gb.")] = None
    sample_duration_seconds: Annotated[Seconds, about("How long passes run at least.")]
    min_sustained_bandwidth_mb_per_s: Annotated[
        Bound, about("The bar on a GPU; without one it is what manual offload attains here.")
    ]
    sustained_ratio: Annotated[float, about("Share of windows that must be above the bar.", gt=0, le=1)]
    cores_first: Annotated[
        bool, about("Give both sides the cores before other programs, where the kernel allows it.")
    ] = False
    baselines: Annotated[
        bool, about("Whether manual offload, accelerate and vLLM stream the same model beside ours.")
    ] = True


class AgentSleepResume(Single, frozen=True, kw_only=True):
    idle_threshold_seconds: Annotated[Seconds, about("Idle time after which a session leaves the device.")]
    sleep_duration_seconds: Annotated[Seconds, about("How long the session sleeps.")]
    host_swap_pool_gb: Annotated[
        Gigabytes | None, about("Host memory for what leaves the device; else the engine's default.")
    ] = None
    max_retries: Annotated[
        Positive, about("How often the resume is asked for while there is no room, before it has failed.")
    ] = 3


class RingSection(Section, frozen=True, kw_only=True):
    capacity_gb: Annotated[
        Gigabytes, about("Most device memory for weights; where all would fit, less is taken, so that they stream.")
    ]


class Server(Section, frozen=True, kw_only=True):
    host: Annotated[Name, about("The address of this machine that the run's engines listen on.")] = "localhost"
    port: Annotated[int, about("The engine's port.", ge=1, le=65535)] = 5556
    timeout_seconds: Annotated[Seconds, about("Longest wait for one answer.")] = 120.0


class ImposedHardware(Section, frozen=True, kw_only=True):
    vram_limit_gb: Annotated[Gigabytes | None, about("A smaller card than there is.")] = None
    gpu_device: Annotated[
        Annotated[int, Meta(ge=0)] | None, about("Index of the GPU; else the best device there is.")
    ] = None
    enforce_vram_limit: Annotated[
        bool, about("Whether the engines are held to the limit; else it is only watched.")
    ] = True


class Logging(Section, frozen=True, kw_only=True):
    level: Annotated[Level, about("Least level of what the log holds.")] = "INFO"
    save_results: Annotated[bool, about("Whether result files are written.")] = True
    results_dir: Annotated[str | None, about("Their folder, where no --output-dir is given.")] = None
    verbose: Annotated[bool, about("Whether the terminal shows single samples and swaps too.")] = False


class ValidationFile(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment validation`."""

    experiment: Heading
    logit_equivalence: LogitEquivalence | None = None
    pcie_flatline: PcieFlatline | None = None
    agent_sleep_resume: AgentSleepResume | None = None
    ring_buffer: RingSection | None = None
    server: Server = Server()
    hardware: ImposedHardware = ImposedHardware()
    logging: Logging = Logging()

    def check(self) -> None:
        ring = self.ring_buffer
        if runs(self.logit_equivalence) and ring is None:
            raise UsageError("logit_equivalence streams weights and needs ring_buffer.capacity_gb.")
        if runs(self.pcie_flatline) and self.ring_gb is None:
            raise UsageError("pcie_flatline needs ring_buffer_gb or ring_buffer.capacity_gb.")
        sleeper = self.agent_sleep_resume
        if sleeper is not None and sleeper.enabled and sleeper.sleep_duration_seconds <= sleeper.idle_threshold_seconds:
            raise UsageError("agent_sleep_resume.sleep_duration_seconds has to be longer than idle_threshold_seconds.")
        if self.hardware.enforce_vram_limit and (self.ring_gb or 0) > (self.limit_gb or float("inf")):
            raise UsageError(
                f"The ring may take {self.ring_gb:g} GiB and the imposed card has {self.limit_gb:g} GiB; "
                "make pcie_flatline.ring_buffer_gb smaller than vram_limit_gb."
            )

    @property
    def ring_gb(self) -> float | None:
        """The flatline's ring: its own key before the general one."""
        own = None if self.pcie_flatline is None else self.pcie_flatline.ring_buffer_gb
        general = None if self.ring_buffer is None else self.ring_buffer.capacity_gb
        return general if own is None else own

    @property
    def limit_gb(self) -> float | None:
        """The flatline's memory limit: its own key before the general one."""
        own = None if self.pcie_flatline is None else self.pcie_flatline.vram_limit_gb
        return self.hardware.vram_limit_gb if own is None else own


def chosen_tests(file: ValidationFile, only: str | None, model: str | None) -> ValidationFile:
    """Return the file with only the test `only` enabled, if named, and with another model, if one is named."""
    found = {name: getattr(file, name) for name in TESTS}
    if model == "":
        raise UsageError("--model names nothing; give `demo`, a folder or a hub name.")
    if only is not None and found[only] is None:
        raise UsageError(f"--only {only}: the file has no section {only}.")
    changes = {
        name: msgspec.structs.replace(
            _with_model(section, model), enabled=section.enabled if only is None else name == only
        )
        for name, section in found.items()
        if section is not None
    }
    asked: ValidationFile = msgspec.structs.replace(file, **changes)
    asked.check()
    if not any(runs(getattr(asked, name)) for name in TESTS):
        raise UsageError("No test is enabled in this file; enable at least one, or name it with --only.")
    return asked


def _with_model(section: Single, model: str | None) -> Single:
    """Return the test on a model that is read, where one is named."""
    if model is None:
        return section
    drawn = {"random_weights": None} if isinstance(section, PcieFlatline) else {}
    return msgspec.structs.replace(section, model_id=model, **drawn)


def runs(section: Single | Steering | Concurrent | MemoryPressure | None) -> bool:
    return section is not None and section.enabled


DeviceShare = Annotated[float, Meta(gt=0, lt=1)]


class Streaming(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment streaming`."""

    model: Annotated[
        Name | None, about("A model with weights of its own, in place of the shapes: `demo`, a folder or a hub name.")
    ] = None
    shapes: Annotated[tuple[Name, ...], about("Architectures that get random weights, one after the other.")] = ()
    divide_widths: Annotated[
        Positive, about("Divides the widths and the vocabulary of the shapes, those above weights_gb by more.")
    ] = 1
    layers: Annotated[
        Positive | None, about("Layers of each shape; else its own, or as many as the host has room for.")
    ] = None
    weights_gb: Annotated[
        Gigabytes | None, about("Most that the weights of a shape may take; else what they take.")
    ] = None
    dtype: OwnDtype = None
    device_share: Annotated[DeviceShare, about("Part of the weights' bytes that the device may hold, with pages.")]
    prompt_tokens: Annotated[Positive, about("Tokens of the prompt.")] = 16
    new_tokens: Annotated[int, about("Tokens that each side generates each time.", ge=2)]
    repeat: Annotated[Positive, about("Repetitions of every side; six or more allow a verdict.")] = 6
    samples: Annotated[Positive, about("Prompts whose logits are compared with the reference's.")] = 3
    least_of_both: Annotated[
        float, about("Bar: the speed, of what computing and copying at once attain.", gt=0, le=1)
    ] = 0.9
    cores_first: Annotated[
        bool, about("Give all sides the cores before other programs, where the kernel allows it.")
    ] = False
    skip_offloads: Annotated[bool, about("Leave out accelerate and DeepSpeed.")] = False
    output_dir: Annotated[Name, about("The folder of the results.")]

    def check(self) -> None:
        if self.model is None and not self.shapes:
            raise UsageError("There is nothing to stream; name a model, or at least one of shapes.")


PauseKind: TypeAlias = Literal["tool", "heavy_tailed", "burst", "recorded"]
WayName: TypeAlias = Literal["never", "recompute", "lru", "time_out", "learned", "hinted_no_prefetch", "hinted"]
WAY_NAMES: tuple[WayName, ...] = get_args(WayName)
CrowdShare: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class AgentModel(Section, frozen=True, kw_only=True):
    name: Annotated[Name, about("`demo`, a folder or a hub name.")]
    dtype: OwnDtype = None
    page_positions: Annotated[
        Positive | None, about("Positions of a page; small ones make small models share and swap.")
    ] = None


class Pauses(Section, frozen=True, kw_only=True):
    kinds: Annotated[
        tuple[PauseKind, ...], about("How agents pause, one agent after the other, over and over.", min_length=1)
    ] = ("tool", "heavy_tailed", "tool", "burst", "tool", "recorded")
    tool_seconds: Annotated[tuple[Seconds, ...], about("Lengths of tool calls, which their agents know.", min_length=1)]
    median_seconds: Annotated[Seconds, about("Median of the heavy-tailed (lognormal) pauses.")]
    sigma: Annotated[float, about("Their sigma.", gt=0, le=4)] = 1.1
    burst_seconds: Annotated[Seconds, about("A pause within a burst; between bursts they are heavy-tailed.")]
    longest_seconds: Annotated[Seconds, about("No pause is longer.")]
    recorded: Annotated[
        Name | None, about("A JSON file with `seconds`, recorded pauses; by default the one that ships.")
    ] = None
    recorded_scale: Annotated[float, about("Factor on recorded pauses.", gt=0)] = 1.0


class AgentCrowd(Section, frozen=True, kw_only=True):
    counts: Annotated[tuple[Positive, ...], about("Agents at once, in each part.", min_length=1)]
    turns: Annotated[int, about("Turns of an agent, with a pause between them.", ge=2)] = 3
    prompt_tokens: Annotated[Positive, about("Tokens of an agent's own prompt.")]
    shared_tokens: Annotated[Positive, about("Tokens of the prompt that some begin with, kept once.")]
    shared: Annotated[CrowdShare, about("The share of agents that begin with it.")] = 0.5
    reply_tokens: Annotated[int, about("Tokens generated in a turn.", ge=2)]
    tool_tokens: Annotated[Positive, about("Tokens that a pause brings, read at the next turn.")]
    arrival_seconds: Annotated[Seconds, about("Mean time between arrivals, exponential.")]
    seed: Annotated[int, about("Of tokens, arrivals and pauses.", ge=0)] = 0

    @property
    def positions(self) -> int:
        """The most positions of an agent at its end."""
        return self.shared_tokens + self.prompt_tokens + self.turns * self.reply_tokens + self.added

    @property
    def added(self) -> int:
        return (self.turns - 1) * self.tool_tokens


class AgentCard(Section, frozen=True, kw_only=True):
    vram_limit_gb: Annotated[Gigabytes | None, about("A smaller card than there is, imposed on weights and pages.")] = (
        None
    )
    host_limit_gb: Annotated[Gigabytes | None, about("Host memory for sessions off the device.")] = None


class AgentsFile(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment agents`."""

    model: AgentModel
    agents: AgentCrowd
    pauses: Pauses
    hardware: AgentCard = AgentCard()
    ways: Annotated[tuple[WayName, ...], about("Ways of keeping agents that pause, each measured.", min_length=1)] = (
        WAY_NAMES
    )
    idle_seconds: Annotated[
        Seconds, about("Rest after which a session leaves the device: time_out and the ways after it.")
    ] = 60.0
    patience_seconds: Annotated[
        Seconds, about("How long an agent asks again where the engine had no room for its turn.")
    ] = 10.0
    repetitions: Annotated[Positive, about("How often each way is measured.")] = 1
    resamples: Annotated[int, about("Bootstrap resamples over agents and repetitions.", ge=100)] = 1000
    duration: Annotated[Seconds, about("Minutes after which the run is ended.")] = 10.0
    output_dir: Annotated[Name, about("The folder of the results.")]

    def check(self) -> None:
        if len(set(self.ways)) != len(self.ways):
            raise UsageError(f"ways names one twice: {', '.join(self.ways)}.")
        if len(set(self.agents.counts)) != len(self.agents.counts):
            raise UsageError(f"agents.counts names a number twice: {list(self.agents.counts)}.")
