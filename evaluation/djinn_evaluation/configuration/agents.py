"""The file of `agents`: how many, what they say and how long they think, the card, and the ways of keeping them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta

from djinn_evaluation.configuration.section import Gigabytes, Name, OwnDtype, Positive, Seconds, Section
from djinn_jupyter.errors import UsageError

PauseKind: TypeAlias = Literal["tool", "heavy_tailed", "burst", "recorded"]
WayName: TypeAlias = Literal["never", "recompute", "lru", "time_out", "learned", "hinted_no_prefetch", "hinted"]
WAY_NAMES: tuple[WayName, ...] = get_args(WayName)
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class AgentModel(Section, frozen=True, kw_only=True):
    name: Annotated[Name, Meta(description="`demo`, a folder or a hub name.")]
    dtype: OwnDtype = None
    page_positions: Annotated[
        Positive | None, Meta(description="Positions of a page; small ones make small models share and swap.")
    ] = None


class Pauses(Section, frozen=True, kw_only=True):
    kinds: Annotated[
        tuple[PauseKind, ...],
        Meta(min_length=1, description="How agents pause, one agent after the other, over and over."),
    ] = ("tool", "heavy_tailed", "tool", "burst", "tool", "recorded")
    tool_seconds: Annotated[
        tuple[Seconds, ...], Meta(min_length=1, description="Lengths of tool calls, which their agents know.")
    ]
    median_seconds: Annotated[Seconds, Meta(description="Median of the heavy-tailed (lognormal) pauses.")]
    sigma: Annotated[float, Meta(gt=0, le=4, description="Their sigma.")] = 1.1
    burst_seconds: Annotated[Seconds, Meta(description="A pause within a burst; between bursts they are heavy-tailed.")]
    longest_seconds: Annotated[Seconds, Meta(description="No pause is longer.")]
    recorded: Annotated[
        Name | None, Meta(description="A JSON file with `seconds`, recorded pauses; by default the one that ships.")
    ] = None
    recorded_scale: Annotated[float, Meta(gt=0, description="Factor on recorded pauses.")] = 1.0


class AgentCrowd(Section, frozen=True, kw_only=True):
    counts: Annotated[tuple[Positive, ...], Meta(min_length=1, description="Agents at once, in each part.")]
    turns: Annotated[int, Meta(ge=2, description="Turns of an agent, with a pause between them.")] = 3
    prompt_tokens: Annotated[Positive, Meta(description="Tokens of an agent's own prompt.")]
    shared_tokens: Annotated[Positive, Meta(description="Tokens of the prompt that some begin with, kept once.")]
    shared: Annotated[Share, Meta(description="The share of agents that begin with it.")] = 0.5
    reply_tokens: Annotated[int, Meta(ge=2, description="Tokens generated in a turn.")]
    tool_tokens: Annotated[Positive, Meta(description="Tokens that a pause brings, read at the next turn.")]
    arrival_seconds: Annotated[Seconds, Meta(description="Mean time between arrivals, exponential.")]
    seed: Annotated[int, Meta(ge=0, description="Of tokens, arrivals and pauses.")] = 0

    @property
    def positions(self) -> int:
        """The most positions of an agent at its end."""
        return self.shared_tokens + self.prompt_tokens + self.turns * self.reply_tokens + self.added

    @property
    def added(self) -> int:
        return (self.turns - 1) * self.tool_tokens


class AgentCard(Section, frozen=True, kw_only=True):
    vram_limit_gb: Annotated[
        Gigabytes | None, Meta(description="A smaller card than there is, imposed on weights and pages.")
    ] = None
    host_limit_gb: Annotated[Gigabytes | None, Meta(description="Host memory for sessions off the device.")] = None


class AgentsFile(Section, frozen=True, kw_only=True):
    """One file of `djinn experiment agents`."""

    model: AgentModel
    agents: AgentCrowd
    pauses: Pauses
    hardware: AgentCard = AgentCard()
    ways: Annotated[
        tuple[WayName, ...], Meta(min_length=1, description="Ways of keeping agents that pause, each measured.")
    ] = WAY_NAMES
    idle_seconds: Annotated[
        Seconds, Meta(description="Rest after which a session leaves the device: time_out and the ways after it.")
    ] = 60.0
    patience_seconds: Annotated[
        Seconds, Meta(description="How long an agent asks again where the engine had no room for its turn.")
    ] = 10.0
    repetitions: Annotated[Positive, Meta(description="How often each way is measured.")] = 1
    resamples: Annotated[int, Meta(ge=100, description="Bootstrap resamples over agents and repetitions.")] = 1000
    duration: Annotated[Seconds, Meta(description="Minutes after which the run is ended.")] = 10.0
    output_dir: Annotated[Name, Meta(description="The folder of the results.")]

    def check(self) -> None:
        if len(set(self.ways)) != len(self.ways):
            raise UsageError(f"ways names one twice: {', '.join(self.ways)}.")
        if len(set(self.agents.counts)) != len(self.agents.counts):
            raise UsageError(f"agents.counts names a number twice: {list(self.agents.counts)}.")
