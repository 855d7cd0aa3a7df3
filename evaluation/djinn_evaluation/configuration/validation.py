"""The files of `validation`: the original system's phase 4."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from djinn_evaluation.configuration.section import Dtype, Gigabytes, Name, Positive, Seconds, Section
from djinn_jupyter.errors import UsageError

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Bound = Annotated[float, Meta(gt=0)]
TESTS = ("logit_equivalence", "pcie_flatline", "agent_sleep_resume")


class Heading(Section, frozen=True, kw_only=True):
    name: Annotated[Name, Meta(description="Written into the summary.")]
    description: Annotated[str, Meta(description="Written into the report.")] = ""
    version: Annotated[Name | float, Meta(description="Of the file's format; 1.0.")] = "1.0"


class Single(Section, frozen=True, kw_only=True):
    """The keys that every test has."""

    enabled: Annotated[bool, Meta(description="Whether this test runs.")] = True
    model_id: Annotated[Name, Meta(description="`demo`, a folder or a hub name.")]
    dtype: Annotated[Dtype, Meta(description="The dtype that the model is served in.")]


class LogitEquivalence(Single, frozen=True, kw_only=True):
    num_samples: Annotated[Positive, Meta(description="Prompts; each goes through the ring in several passes.")]
    tolerance_norm: Annotated[
        Bound, Meta(description="Most that the norm of the difference may be, where tolerances decide.")
    ]
    tolerance_max_diff: Annotated[Bound, Meta(description="Most that any logit may differ, where tolerances decide.")]
    pass_if_predictions_match: Annotated[
        bool, Meta(description="On another device: whether the five most likely tokens decide, and not the tolerances.")
    ] = True


class RandomWeights(Section, frozen=True, kw_only=True):
    """The size of a model whose weights are drawn: layers that are copied in milliseconds, as those of a model are that
    needs a ring."""

    divide_widths: Annotated[
        Positive, Meta(description="Divides the widths of the architecture that model_id names; weights are drawn.")
    ]
    layers: Annotated[Positive | None, Meta(description="Its layers; else its own, or as many as fit.")] = None


class PcieFlatline(Single, frozen=True, kw_only=True):
    random_weights: RandomWeights | None = None  # else model_id is read
    ring_buffer_gb: Annotated[
        Gigabytes | None, Meta(description="Most device memory for weights; else ring_buffer.capacity_gb.")
    ] = None
    vram_limit_gb: Annotated[
        Gigabytes | None, Meta(description="A smaller card, imposed; else hardware.vram_limit_gb.")
    ] = None
    sample_duration_seconds: Annotated[Seconds, Meta(description="How long passes run at least.")]
    min_sustained_bandwidth_mb_per_s: Annotated[
        Bound, Meta(description="The bar on a GPU; without one it is what manual offload attains here.")
    ]
    sustained_ratio: Annotated[float, Meta(gt=0, le=1, description="Share of windows that must be above the bar.")]
    cores_first: Annotated[
        bool, Meta(description="Give both sides the cores before other programs, where the kernel allows it.")
    ] = False
    baselines: Annotated[
        bool, Meta(description="Whether manual offload, accelerate and vLLM stream the same model beside ours.")
    ] = True


class AgentSleepResume(Single, frozen=True, kw_only=True):
    idle_threshold_seconds: Annotated[Seconds, Meta(description="Idle time after which a session leaves the device.")]
    sleep_duration_seconds: Annotated[Seconds, Meta(description="How long the session sleeps.")]
    host_swap_pool_gb: Annotated[
        Gigabytes | None, Meta(description="Host memory for what leaves the device; else the engine's default.")
    ] = None
    max_retries: Annotated[
        Positive, Meta(description="How often the resume is asked for while there is no room, before it has failed.")
    ] = 3


class RingSection(Section, frozen=True, kw_only=True):
    capacity_gb: Annotated[
        Gigabytes,
        Meta(description="Most device memory for weights; where all would fit, less is taken, so that they stream."),
    ]


class Server(Section, frozen=True, kw_only=True):
    host: Annotated[Name, Meta(description="The address of this machine that the run's engines listen on.")] = (
        "localhost"
    )
    port: Annotated[int, Meta(ge=1, le=65535, description="The engine's port.")] = 5556
    timeout_seconds: Annotated[Seconds, Meta(description="Longest wait for one answer.")] = 120.0


class ImposedHardware(Section, frozen=True, kw_only=True):
    vram_limit_gb: Annotated[Gigabytes | None, Meta(description="A smaller card than there is.")] = None
    gpu_device: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Index of the GPU; else the best device there is.")
    ] = None
    enforce_vram_limit: Annotated[
        bool, Meta(description="Whether the engines are held to the limit; else it is only watched.")
    ] = True


class Logging(Section, frozen=True, kw_only=True):
    level: Annotated[Level, Meta(description="Least level of what the log holds.")] = "INFO"
    save_results: Annotated[bool, Meta(description="Whether result files are written.")] = True
    results_dir: Annotated[str | None, Meta(description="Their folder, where no --output-dir is given.")] = None
    verbose: Annotated[bool, Meta(description="Whether the terminal shows single samples and swaps too.")] = False


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
        if _runs(self.logit_equivalence) and ring is None:
            raise UsageError("logit_equivalence streams weights and needs ring_buffer.capacity_gb.")
        if _runs(self.pcie_flatline) and self.ring_gb is None:
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
    if not any(_runs(getattr(asked, name)) for name in TESTS):
        raise UsageError("No test is enabled in this file; enable at least one, or name it with --only.")
    return asked


def _with_model(section: Single, model: str | None) -> Single:
    """Return the test on a model that is read, where one is named."""
    if model is None:
        return section
    drawn = {"random_weights": None} if isinstance(section, PcieFlatline) else {}
    return msgspec.structs.replace(section, model_id=model, **drawn)


def _runs(section: Single | None) -> bool:
    return section is not None and section.enabled
