"""Values as an engine of eight layers would report them: seeded, so that every run draws the same cards."""

from __future__ import annotations

import numpy as np

from djinn_jupyter.api.memory_trace import Reading, TracedTransfer
from djinn_jupyter.settings import Identity, Options
from djinn_jupyter.wire import replies
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Add
from djinn_jupyter.wire.nouns import (
    BreakpointDescription,
    CheckpointDescription,
    CheckResult,
    EngineStatistics,
    LensRow,
    ModelDescription,
    PointDescription,
    RingSlot,
    RuleDescription,
    SessionDescription,
    SlabStatistics,
    StopIdentity,
    TierStatistics,
    TopToken,
    Transfer,
    WatchDescription,
    WeightsStatistics,
)
from djinn_jupyter.wire.readings import (
    Change,
    EarlierPasses,
    EffectReading,
    Influences,
    Override,
    RuleAtStop,
    TokenShift,
)
from djinn_jupyter.wire.registry import Entry

LAYERS, WIDTH, HEADS = 8, 256, 8
STOP = StopIdentity(session="work/paris.ipynb", number=1, edition=1)
PROMPT = ("The", " capital", " of", " France", " is")
STREAMED = ((" Paris", 0.9), (".", 0.25), (" <b>", None))
WORDS = (" Paris", " Lyon", " the", " a", " Rome", "\n", " <b>", " Oslo")


def values(*shape: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    made[..., 7] *= 6
    return made


def top(count: int = 5, first: float = 0.62, seed: int = 0) -> tuple[TopToken, ...]:
    shares = [first * 0.35**i for i in range(count)]
    names = [WORDS[(seed + i) % len(WORDS)] for i in range(count)]
    return tuple(
        TopToken(token=100 + WORDS.index(n), text=n, probability=p, logit=float(np.log(p)))
        for n, p in zip(names, shares, strict=True)
    )


def described_breakpoint(**changes: object) -> BreakpointDescription:
    fields = {"number": 1, "site": "resid_post.4", "when": None, "once": False, "enabled": True, "hits": 1, **changes}
    return BreakpointDescription(**fields)


def paused(
    site: str = "resid_post.4", *, layer: int = 5, texts: tuple[str, ...] = PROMPT, **changes: object
) -> replies.Paused:
    count = len(texts)
    positions = tuple(changes.get("positions", range(count)))
    fields = {
        "session": "work/paris.ipynb",
        "stop": STOP,
        "site": site,
        "reason": "breakpoint",
        "breakpoint": described_breakpoint(site=site),
        "also": (),
        "matched": None,
        "step": 0,
        "layer": layer,
        "layers": LAYERS,
        "positions": positions,
        "tokens": tuple(range(10, 10 + count)),
        "texts": texts,
        "prompt_tokens": count,
        "prompt_text": "".join(texts),
        "new_text": "",
        "log_probabilities": (),
        "shape": (len(positions), WIDTH),
        "axes": "T D",
        "dtype": "float32",
        "norms": tuple(float(np.linalg.norm(row)) for row in values(len(positions), WIDTH)),
        "edits": (),
        "history_index": 0,
        "history_length": 1,
        "layers_run": layer,
        **changes,
    }
    return replies.Paused(**fields)


def finished(**changes: object) -> replies.Finished:
    fields = {
        "session": "work/paris.ipynb",
        "stop": STOP,
        "reason": "length",
        "detail": None,
        "tokens": (100, 101, 102),
        "texts": (" Paris", ".", " The"),
        "text": " Paris. The",
        "prompt_tokens": tuple(range(10, 15)),
        "prompt_texts": PROMPT,
        "prompt_text": "".join(PROMPT),
        "log_probabilities": (-0.0132, -0.5, -2.0),
        "top": top(),
        "rules": (),
        "ignored_defaults": (),
        "layers_run": 24,
        "passes": 3,
        **changes,
    }
    return replies.Finished(**fields)


def lens_rows(
    positions: tuple[int, ...], texts: tuple[str, ...] = PROMPT, count: int = 5, chosen: tuple[str | int, ...] = ()
) -> tuple[LensRow, ...]:
    return tuple(
        LensRow(
            position=p,
            token=10 + p,
            text=texts[p],
            top=top(count, first=0.1 + 0.15 * (p % 6), seed=p),
            chosen=tuple(_chosen(token, p) for token in chosen),
        )
        for p in positions
    )


def _chosen(token: str | int, position: int) -> TopToken:
    number = token if isinstance(token, int) else 100 + WORDS.index(token)
    share = 0.02 + 0.09 * position + 0.01 * (number % 5)
    return TopToken(token=number, text=WORDS[number - 100], probability=share, logit=float(np.log(share)))


def effect(**changes: object) -> EffectReading:
    before, after = top(5, 0.93), top(5, 0.51, seed=1)
    texts = {t.token: t.text for t in (*after, *before)}
    fields = {
        "before": before,
        "after": after,
        "kl": 1.2345,
        "top1_changed": True,
        "logit_difference_norm": 12.0,
        "shifts": tuple(shift(token, text, before, after) for token, text in texts.items()),
        **changes,
    }
    return EffectReading(**fields)


def shift(token: int, text: str, before: tuple[TopToken, ...] = (), after: tuple[TopToken, ...] = ()) -> TokenShift:
    """A token as both heads have it; where one has not, with a small probability."""
    old, new = (next((t.probability for t in head if t.token == token), 0.004) for head in (before, after))
    return TokenShift(
        token=token, text=text, probability_before=old, probability_after=new,
        logit_before=float(np.log(old)), logit_after=float(np.log(new)),
    )  # fmt: skip


def influences() -> Influences:
    """A rule in force, an edit of an earlier stop of the pass, and passes before it."""
    what = "add [256] x 4 at resid_post.2"
    edit = Change(what="zero at z.1[3], position 4", relative_size=1.0)
    return Influences(
        rules=(
            RuleAtStop(number=1, site="resid_post.2", what=what, applies="applied", relative_size=0.3123),
            RuleAtStop(number=2, site="resid_post.6", what="scale 2 at resid_post.6", applies="ahead"),
        ),
        overrides=(
            Override(site="z.1", changes=(edit,)),
            Override(site="resid_post.2", changes=(Change(what=what, rule=1, relative_size=0.3123),)),
        ),
        earlier=(EarlierPasses(start=0, end=4, changes=("rule 1: " + what,)),),
    )


def edited(**changes: object) -> replies.Edited:
    fields = {
        "stop": STOP,
        "site": "resid_post.4",
        "edit": "scale by 0.9",
        "shape": (1, WIDTH),
        "positions": (4,),
        "norm_before": 20.0,
        "norm_after": 18.0,
        "relative_size": 0.1,
        "entries_changed": WIDTH,
        **changes,
    }
    return replies.Edited(**fields)


def rule(**changes: object) -> RuleDescription:
    fields = {
        "number": 1,
        "site": "resid_post.4",
        "edit": Add(vector=Array.scalar(1.0), coef=4.0),
        "positions": None,
        "what": "add [256] x 4 at resid_post.4",
        "passes_met": 3,
        "passes_changed": 3,
        "last_relative_size": 0.3123,
        "mean_relative_size": 0.2987,
        **changes,
    }
    return RuleDescription(**fields)


def watch(**changes: object) -> WatchDescription:
    fields = {
        "site": "resid_post.4",
        "passes": 3,
        "bytes_held": 7168,
        "byte_cap": 2**28,
        "passes_left_out": 0,
        **changes,
    }
    return WatchDescription(**fields)


def session(name: str = "work/paris.ipynb", **changes: object) -> SessionDescription:
    fields = {
        "name": name,
        "owner": "ada",
        "holder": "kernel-1",
        "state": "idle",
        "tokens": 0,
        "committed": 0,
        "stopped_at": None,
        "step": None,
        "breakpoints": (),
        "rules": (),
        "watches": (),
        "stops_kept": 0,
        "stop": STOP,
        "pages": 0,
        "device_bytes": 0,
        "idle_seconds": 1.5,
        **changes,
    }
    return SessionDescription(**fields)


def batch(name: str, rows: int, **changes: object) -> list[SessionDescription]:
    """A session and the rows of its batch."""
    return [session(one, **changes) for one in (name, *(f"{name}/{number}" for number in range(rows)))]


def entry(**changes: object) -> Entry:
    fields = {
        "version": "1",
        "pid": 4711,
        "mark": "2",
        "host": "here",
        "boot": "b",
        "started": 3.0,
        "identity": Identity(model="demo"),
        "found": Identity(model="work/<b>demo", dtype="float32", device="cpu", attention="sdpa"),
        "options": Options(),
        "commands": "ipc://x/commands",
        **changes,
    }
    return Entry(**fields)


def transfer(**changes: object) -> Transfer:
    fields = {
        "direction": "in",
        "tier": "host",
        "bytes_moved": 1_717_986_918,
        "seconds": 0.0342,
        "cause": "asked",
        **changes,
    }
    return Transfer(**fields)


def checkpoint(**changes: object) -> CheckpointDescription:
    fields = {
        "name": "before",
        "session": "work/paris.ipynb",
        "model": "demo",
        "dtype": "float32",
        "tokens": 5,
        "stopped_at": "resid_post.4",
        "step": 0,
        "bytes_stored": 2**20,
        "saved": 1_790_000_000.0,
        "version": "1",
        **changes,
    }
    return CheckpointDescription(**fields)


def weights(**changes: object) -> WeightsStatistics:
    fields = {"residency": "resident", "bytes_total": 28_000_000, "bytes_on_device": 28_000_000, **changes}
    return WeightsStatistics(**fields)


def streamed(**changes: object) -> WeightsStatistics:
    """A mixture of experts of which ten layers stream; copied at 8 GB/s, a quarter of the passes' time waited for."""
    ring = (
        RingSlot(layer=7, generation=41, bytes_allocated=2**20, computing=True),
        RingSlot(layer=None, generation=0, bytes_allocated=2**20, computing=False),
    )
    fields = {
        "residency": "streamed",
        "bytes_on_device": 8 * 2**20,
        "bytes_streamed_per_pass": 10 * 2**20,
        "layers_streamed": 10,
        "ring_slots": 2,
        "ring": ring,
        "layer_copies": 410,
        "copy_gigabytes_per_second": 8.0,
        "waited_seconds": 0.5,
        "pass_seconds": 2.0,
        "used_fraction": 0.4,
        "bytes_held_on_host": 3 * 2**20,
        "link_bytes_per_second": 2.0**30,
        "bytes_enough": 32 * 2**20,
        **changes,
    }
    return weights(**fields)


def tier(name: str = "host", **changes: object) -> TierStatistics:
    fields = {
        "tier": name,
        "pages": 12,
        "bytes_used": 3 * 2**20,
        "bytes_allocated": 2**24,
        "bytes_limit": 2**30,
        "bytes_out": 5 * 2**20,
        "bytes_in": 2 * 2**20,
        **changes,
    }
    return TierStatistics(**fields)


def readings(count: int = 400) -> list[Reading]:
    """A slab of 16 MiB that fills with nine sessions and is emptied again."""
    made = []
    for i in range(count):
        held = [(f"session-{n}", 2**20 * min(i // 20, 3)) for n in range(9) if i // 40 > n and i < 380]
        made.append(
            Reading(at=i / 4, weights=28_000_000, sessions=tuple(held), empty=2**24 - sum(s for _, s in held) // 2,
                    host=2**20 * (i // 40), disk=0, budget=80_000_000, process=500 * 2**20, in_use=None, total=None,
                    others=None)
        )  # fmt: skip
    return made


def moves() -> list[TracedTransfer]:
    return [
        TracedTransfer(
            at=5.0 * n, session=f"session-{n}", transfer=transfer(direction="in" if n % 3 else "out", cause="pressure")
        )
        for n in range(20)
    ]


def model() -> ModelDescription:
    def point(
        name: str, layers: tuple[int, ...] | None, shape: str = "T D", heads: int | None = None
    ) -> PointDescription:
        return PointDescription(point=name, layers=layers, shape=shape, heads=heads, features=WIDTH)

    every = tuple(range(LAYERS))
    return ModelDescription(
        name="demo",
        revision=None,
        architecture="LlamaForCausalLM",
        dtype="float32",
        device="cpu",
        attention="eager",
        layers=LAYERS,
        hidden_size=WIDTH,
        vocab_size=2000,
        context_length=1024,
        parameters=7_000_000,
        weight_bytes=28_000_000,
        has_tokenizer=True,
        has_chat_template=False,
        eos_token_ids=(1,),
        points=(
            point("embed", None),
            *(point(n, every) for n in ("resid_pre", "resid_mid", "mlp_out", "resid_post")),
            *(point(n, every, "T H D", HEADS) for n in ("q", "k", "v", "z")),
            point("pattern", every, "T H K", HEADS),
            point("ln_final", None),
            point("logits", None),
        ),
        cache_groups=(),
        recurrent_state_bytes=0,
        feeding="chunks",
        generation_defaults={},
        checks=(CheckResult(name="stops are exact", passed=True, detail=""),) * 9,
    )


def statistics(**changes: object) -> EngineStatistics:
    slab = SlabStatistics(
        pages=64, pages_free=60, pages_shared=1, page_bytes=2**18, bytes_allocated=2**24, bytes_limit=2**30,
        working_copies=1, working_bytes=2**18,
    )  # fmt: skip
    fields = {
        "pid": 4242, "uptime_seconds": 12.5, "sessions": 2, "sessions_running": 0, "passes": 30, "layers_run": 240,
        "tokens_sampled": 24, "requests_answered": 99, "preemptions": 0, "weight_bytes": 28_000_000, "slabs": (slab,),
        "process_bytes": 500 * 2**20, "device_bytes_in_use": None, "device_bytes_total": None,
        "tiers": (tier(), tier("disk", pages=0, bytes_used=0)), "weights": weights(), **changes,
    }  # fmt: skip
    return EngineStatistics(**fields)
