"""A run: the requests that start, move and stop it, and its stops and ends."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from djinn_jupyter.wire import nouns
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Cleared, OwnName, ReplyBase, Tokens
from djinn_jupyter.wire.edits import Edit, RuleDescription
from djinn_jupyter.wire.readings import Influences
from djinn_jupyter.wire.request_base import (
    ConditionText,
    Count,
    Positions,
    SessionRequest,
    Spelling,
    StopRequest,
    StopStrings,
    Text,
    require_computable,
)

MOST_METRICS: Final = 64


class Paused(ReplyBase):
    """A stopped forward pass.

    `layer` layers have run in this pass, layers `layer`.. have not (a stop inside layer n has run n whole layers).
    `step` 0 is the prompt, n the n-th generated token. `positions` are the absolute positions of this pass. `site` is
    in the caller's spelling, and `shape`, `norms` and `values` are of its selected heads or features. `norms` are L2
    norms at each position of the pass, over all other axes. `values` are the numbers by position where each position
    has one (a single feature), else None. Conditions read these as `norm` and `value`. `matched` is the position for
    which the breakpoint's condition was true. `also` names further breakpoints at the same place. `edits` are the edits
    of this stop in words; `influences` are all differences from the unmodified model. `texts` are single tokens, bytes
    of a longer character as `<0xD9>`; `prompt_text` and `new_text` together are the tokens decoded as a whole.
    `log_probabilities` are those of the new tokens under the model's own fp32 logits, before temperature and other
    sampling settings; None where they were not kept.
    """

    session: OwnName
    stop: nouns.StopIdentity
    site: str
    reason: nouns.PauseReason
    breakpoint: nouns.BreakpointDescription | None
    also: tuple[str, ...]
    matched: int | None
    step: int
    layer: int
    layers: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    prompt_tokens: int
    prompt_text: str
    new_text: str
    log_probabilities: tuple[float | None, ...]
    shape: tuple[int, ...]
    axes: str
    dtype: str
    norms: tuple[float, ...]
    edits: tuple[str, ...]
    history_index: int
    history_length: int
    layers_run: int
    influences: Influences = Influences()
    values: tuple[float, ...] | None = None


class Finished(ReplyBase):
    """A run that reached its end. `tokens` are the new ids of this run, over all its stops; `top` the final
    distribution: of the position after the last token fed. `layers_run` and `passes` count the work of this result from
    the run's beginning, without work that `back` undid. `ignored_defaults` are the model's own generation settings that
    were not applied. `texts` are single tokens, bytes of a longer character as `<0xD9>`; `prompt_text` and `text`
    together are the tokens decoded as a whole. `log_probabilities` are as in Paused. `shared`: passes shared with other
    runs. `note`: why `fast` shared none, and whether the tokenizer's first token appears twice. `largest_difference`:
    of shared logits from those of a randomly chosen pass of this row, computed again alone."""

    session: OwnName
    stop: nouns.StopIdentity
    reason: nouns.FinishReason
    detail: str | None
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    text: str
    prompt_tokens: tuple[int, ...]
    prompt_texts: tuple[str, ...]
    prompt_text: str
    log_probabilities: tuple[float | None, ...]
    top: tuple[nouns.TopToken, ...]
    rules: tuple[RuleDescription, ...]
    ignored_defaults: tuple[str, ...]
    layers_run: int
    passes: int
    shared: int = 0
    note: str | None = None
    largest_difference: float | None = None


class Run(SessionRequest[Paused | Finished], shared="write", browser="moves", fills=True, wakes_weights=True):
    """Run a prompt (text or token ids) until a stop or the end.

    The tokens start afresh, unless `extend`: then the prompt (may be empty) is appended to the present tokens. After a
    run for no new token an empty prompt works too: the next token is drawn from the last logits. `free` ignores
    breakpoints. `fast` shares passes of generated tokens with other such runs; last bits may differ.
    """

    text: Text | None = None
    tokens: Tokens | None = None
    max_new_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] = 20
    sampling: nouns.Sampling = nouns.Sampling()
    stop: StopStrings = ()
    ignore_eos: bool = False
    chat: bool = False
    extend: bool = False
    free: bool = False
    mode: nouns.Mode = "exact"

    @property
    def forgets(self) -> bool:
        return not self.extend

    def __post_init__(self) -> None:
        """Refuse sampling settings that cannot be computed: stored sessions may have them, a new run may not."""
        if isinstance(self.sampling, nouns.Sampling):
            require_computable(self.sampling)


class Resume(StopRequest[Paused | Finished], shared="write", browser="moves", wakes_weights=True):
    """Go on from the stop. `mode` None keeps the run's mode; without `sampling` the run keeps its own."""

    free: bool = False
    mode: nouns.Mode | None = None
    sampling: nouns.SamplingChanges | UnsetType = UNSET


class Step(StopRequest[Paused | Finished], shared="write", browser="moves", wakes_weights=True):
    """By layers, by tokens (to the same site of a later pass), or by points: to the next point of the layer that the
    pass is before or inside, at its end to the layer's output."""

    count: Count = 1
    by: Literal["layer", "token", "point"] = "layer"


class Back(StopRequest[Paused], shared="write", browser="moves", wakes_weights=True):
    count: Count = 1
    by: Literal["stop", "layer", "token"] = "stop"


class Pausing(ReplyBase):
    """The run will stop at its next layer boundary, or the work reply with its parts; `was_running` is False when there
    was nothing to stop."""

    was_running: bool


class Pause(
    SessionRequest[Pausing], shared="write", browser="asks", changes=False, while_running=True, while_looking=True
):
    """Stop a run at its next layer boundary; end a measurement of edges, an attribution graph or a reading of heads
    with its finished parts."""


class ReadStop(SessionRequest[Paused], shared="read", browser="asks", resent="anew", without_rows=True):
    """The present stop once more, as reported."""


class Logits(ReplyBase):
    stop: nouns.StopIdentity
    logits: Array


class ReadLogits(SessionRequest[Logits], shared="read", browser="asks", resent="anew", without_rows=True):
    """fp32 logits of the last position of the last finished pass."""


class MetricsRead(ReplyBase):
    """A value for each metric, in the order asked."""

    values: tuple[float, ...]


class ReadMetrics(SessionRequest[MetricsRead], shared="read", resent="anew", without_rows=True):
    """These metrics of the logits of the last finished pass."""

    metrics: Annotated[tuple[Spelling, ...], Meta(min_length=1, max_length=MOST_METRICS)]


class BreakpointSet(ReplyBase):
    breakpoint: nouns.BreakpointDescription
    existed: bool


class SetBreakpoint(SessionRequest[BreakpointSet], shared="write", browser="asks", while_running=True):
    site: Spelling
    when: ConditionText | None = None
    once: bool = False


class EnableBreakpoint(SessionRequest[BreakpointSet], shared="write", browser="asks", while_running=True):
    number: int
    enabled: bool


class ClearBreakpoints(SessionRequest[Cleared], shared="write", browser="asks", while_running=True):
    """`sites` None clears all; otherwise spellings or numbers."""

    sites: Annotated[tuple[Spelling, ...], Meta(max_length=10_000)] | None = None


MOST_SITES: Final = 16_384


class PassRead(ReplyBase):
    """The values at the requested sites that the pass reached, in the order of the request; `logits` are fp32
    [positions of the pass, vocabulary]."""

    stop: nouns.StopIdentity
    sites: tuple[str, ...]
    values: tuple[Array, ...]
    logits: Array | None = None


class ReadPass(SessionRequest[PassRead], shared="read", browser="asks", resent="anew"):
    """Read the values at `sites` of the stopped pass up to the stop; with `ahead` also of its continuation with the
    edits so far, and with `logits` those of all its positions. A given `value` replaces the stopped one at `positions`
    in the continuation, as in ResumeWith; the stop itself stays unchanged."""

    sites: Annotated[tuple[Spelling, ...], Meta(max_length=MOST_SITES)] = ()
    ahead: bool = False
    logits: bool = False
    value: Array | None = None
    positions: Positions | None = None


class Reached(ReplyBase):
    """The stop that a ResumeWith reached: the value there, `step` and `positions` of its pass, as in Paused, and the
    tokens that the run has `drawn` so far."""

    snapshot: nouns.Snapshot
    step: int
    positions: tuple[int, ...]
    drawn: tuple[int, ...]


class ResumeWith(StopRequest[Reached | Finished], shared="write", wakes_weights=True):
    """Resume with `value` in place of the stopped one, and read the value at the next stop: an edit, a Resume and an
    Inspect in one. `positions` are absolute, negative from the end of the pass, None for the whole pass; `value` None
    changes nothing. `halts` are the session's breakpoints from here on; None keeps them."""

    value: Array | None = None
    positions: Positions | None = None
    halts: Annotated[tuple[Spelling, ...], Meta(max_length=MOST_SITES)] | None = None


class RevertEdits(StopRequest[Paused], shared="write", browser="asks", without_rows=True): ...


class EnableEdit(StopRequest[Paused], shared="write", browser="asks", without_rows=True):
    """Turn an edit of the present stop off or on: the stopped value is then computed with the other edits only."""

    number: int
    enabled: bool


class Unsteer(SessionRequest[Cleared], shared="write", browser="asks", while_running=True):
    """`number` None removes all rules."""

    number: int | None = None


class Edited(ReplyBase):
    """The effect of an edit. `shape` is the changed shape, `relative_size` = |after - before| / |before| over that
    part. `stop` has the new edition."""

    stop: nouns.StopIdentity
    site: str
    edit: str
    shape: tuple[int, ...]
    positions: tuple[int, ...]
    norm_before: float
    norm_after: float
    relative_size: float | None
    entries_changed: int


class Steered(ReplyBase):
    rule: RuleDescription
    existed: bool


class ApplyEdit(StopRequest[Edited], shared="write", browser="asks", keeps_arrays=True):
    """Change the stopped value. `site` must be the stopped one (with any selector) or None. `positions` are absolute,
    negative from the end of the pass, None for the whole pass. `words` describe the edit."""

    edit: Edit
    site: Spelling | None = None
    positions: Positions | None = None
    words: Spelling | None = None


class EnableRule(SessionRequest[Steered], shared="write", browser="asks", while_running=True):
    """Turn a steering rule off or on without ending it, from the next pass (or the rest of this one) on."""

    number: int
    enabled: bool


class Steer(SessionRequest[Steered], shared="write", browser="asks", keeps_arrays=True, while_running=True):
    """Apply `edit` at every pass that reaches `site`, which may be a point of every layer (`resid_post.*`): at these
    `positions` (negative from the end of each pass) and all from `onward` on, or the whole pass; in passes over the
    prompt or over new tokens (`on`), or both; where the condition `when` is true at the position. An array with a row
    for each of several `positions` gives each its row. `words` describe the edit."""

    site: Spelling
    edit: Edit
    positions: Positions | None = None
    onward: Annotated[int, Meta(ge=0)] | None = None
    on: nouns.PassesMeant | None = None
    when: ConditionText | None = None
    words: Spelling | None = None
