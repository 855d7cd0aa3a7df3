"""One of each view, drawn from the samples."""

from __future__ import annotations

import numpy as np

from djinn_jupyter.methods.circuits import card as circuit_cards
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.view import View
from tests.widgets import circuits, edged, samples, trees
from tests.widgets.compared import compared
from tests.widgets.pooled import pooled

LONG = tuple(f" w{i}" for i in range(60))
LATER = (*samples.PROMPT, " Paris", ".")


def pattern(heads: int = samples.HEADS) -> np.ndarray:
    weights = np.tril(np.random.default_rng(1).random((5, 5)))
    weights /= weights.sum(-1, keepdims=True)
    return np.repeat(weights[:, None], heads, axis=1).astype(np.float32)


def look(site: str, values: np.ndarray, axes: str = "T D") -> views.Look:
    return views.Look(
        site=site,
        values=values,
        axes=axes,
        positions=tuple(range(len(values))),
        dtype="float32",
        exactness="exact",
        texts=dict(enumerate(samples.PROMPT)),
    )


def line(name: str, *, seed: int | None = None) -> views.DiffSide:
    """A session's line; with a seed it stands at resid_post.4."""
    return views.DiffSide(
        name=name,
        state="finished" if seed is None else "paused at resid_post.4",
        tokens=(1, 2, 3, 4, 5, 100 + (seed or 0), 7),
        texts=LATER,
        prompt_tokens=5,
        prompt_text="".join(LATER[:5]),
        new_text="".join(LATER[5:]),
        top=samples.top(seed=seed or 0),
        site=None if seed is None else "resid_post.4",
    )


def all_cards() -> dict[str, View]:
    wide = samples.values(5, samples.WIDTH)
    drawn = pooled(wide)
    rows = samples.lens_rows(tuple(range(5)))
    edited_stop = samples.paused("z.3[1]", layer=3, edits=("scale by 0.9 at position 4",), history_length=3)
    long_stop = samples.paused(
        "resid_post.7",
        layer=8,
        texts=LONG,
        prompt_tokens=40,
        matched=3,
        breakpoint=samples.described_breakpoint(when="norm > 15"),
    )
    step_stop = samples.paused(texts=LATER, positions=(6,), step=2, reason="step", breakpoint=None, new_text=" Paris.")
    point = samples.described_breakpoint()
    held = samples.session("rome", state="paused", stopped_at="resid_post.4", step=0, breakpoints=(point,), holder=None)
    return {
        "edges": circuit_cards.edges_view(edged.found(), top=6),
        "circuit": circuit_cards.circuit_view(circuits.circuit()),
        "circuits": circuit_cards.curve_view(circuits.curve()),
        "tree": views.tree_view(trees.branches(), present="zeroed"),
        "stop": views.stop_view(samples.paused(), pooled=drawn, lens=rows),
        "stop, edited": views.stop_view(edited_stop, pooled=drawn, effect=samples.effect()),
        "stop, long": views.stop_view(
            long_stop,
            pooled=pooled(samples.values(60, samples.WIDTH), alone=(3, *range(51, 60))),
            lens=samples.lens_rows(tuple(range(50, 60)), LONG),
            effect=samples.effect(),
        ),
        "stop, one position": views.stop_view(
            step_stop, pooled=pooled(wide[:1], (6,)), lens=samples.lens_rows((6,), LATER)
        ),
        "stop, nothing fetched": views.stop_view(samples.paused()),
        "result": views.result_view(samples.finished(rules=(samples.rule(),), ignored_defaults=("temperature=0.6",))),
        "dose-response": views.dose_response_view(
            [-1, 0, 1],
            {"sad <b>": [0.1, 0.25, 0.9], "happy": [0.8, 0.3, 0.0004]},
            dose="coefficient",
            response="probability",
            title="Mood by dose",
        ),
        "running": views.running_view(samples.STREAMED, session="work/paris.ipynb", drawn="10:20:30"),
        "progress": views.progress_view("reading the weights"),
        "broken off": views.broken_off_view(" Paris.", 2, session="work/paris.ipynb", why="The engine has ended."),
        "edit": views.edit_view(samples.edited(), edited_stop, samples.effect()),
        "edit under a rule": views.edit_view(
            samples.edited(),
            samples.paused(influences=samples.influences()),
            samples.effect(chosen=(samples.shift(106, " <b>"), samples.shift(101, " Lyon"))),
        ),
        "edit of nothing": views.edit_view(samples.edited(entries_changed=0, relative_size=None), samples.paused()),
        "stop under a rule": views.stop_view(samples.paused(influences=samples.influences()), pooled=drawn, lens=rows),
        "lens": views.lens_view("resid_post.4", rows),
        "lens by layer": views.lens_grid_view(
            {f"resid_post.{i}": samples.lens_rows(tuple(range(5)), count=1) for i in range(5)}
        ),
        "lens by layer of tokens": views.lens_grid_view(
            {f"resid_post.{i}": samples.lens_rows((i,), count=1, chosen=(" Paris", " <b>")) for i in range(5)}
        ),
        "snapshot": views.snapshot_view(look("mlp_out.2", wide)),
        "snapshot by head": views.snapshot_view(look("z.2", samples.values(5, 8, 32), "T H D")),
        "pattern": views.snapshot_view(look("pattern.2", pattern(), "T H K")),
        "pattern of a head": views.snapshot_view(look("pattern.2[3]", pattern(1), "T H K")),
        "watch": views.watch_view(samples.watch(), [wide, wide[:1]], [range(5), (5,)]),
        "watch, empty": views.watch_view(samples.watch(passes=0, bytes_held=0), [], []),
        "breakpoints": views.breakpoints_view([point, samples.described_breakpoint(number=2, when='p(" <b>") > 0.5')]),
        "no breakpoints": views.breakpoints_view([]),
        "rules": views.rules_view([samples.rule()]),
        "watches": views.watches_view([samples.watch(passes_left_out=2)]),
        "sessions": views.sessions_view([samples.session(), held], present="rome", mine={"rome"}),
        "sessions in tiers": views.sessions_view(
            [
                samples.session("oslo", residency="disk", disk_bytes=2**20, idle_seconds=7300.0),
                samples.session("rome", residency="host", host_bytes=3 * 2**20, exactness="recomputed"),
                samples.session(device_bytes=2**20, host_bytes=2**19, dirty_bytes=2**17),
            ],
            present="rome",
            mine={"rome"},
        ),
        "sessions folded": views.sessions_view(
            [*samples.batch("rome", 40), *samples.batch("oslo", 3, holder=None)], present="rome/3", mine={"rome/3"}
        ),
        "engines": views.engines_view([samples.entry(), samples.entry(listens="tcp://0.0.0.0:7000")]),
        "checkpoints": views.checkpoints_view([samples.checkpoint(), samples.checkpoint(name="<b>", stopped_at=None)]),
        "many checkpoints": views.checkpoints_view([samples.checkpoint()], left_out=1200),
        "no checkpoints": views.checkpoints_view([]),
        "status, moved": views.status_view(
            samples.model(),
            samples.statistics(weights=samples.streamed()),
            samples.session(last_transfer=samples.transfer(cause="needed")),
        ),
        "stop, restored": views.stop_view(samples.paused(), restored=samples.transfer()),
        "loaded": views.loaded_view(samples.model(), held),
        "status": views.status_view(samples.model(), samples.statistics(), held),
        "diff": views.diff_view(line("work/paris.ipynb"), line("rome", seed=2)),
        "diff by layer": views.diff_view(
            line("paris", seed=1),
            line("rome", seed=2),
            positions=range(5),
            layers={f"resid_post.{i}": (wide, wide + np.float32(0.1 * i)) for i in range(5)},
        ),
        "memory": views.memory_view("demo", samples.readings(), samples.moves()),
        "memory, once": views.memory_view("demo", samples.readings()[:1], ()),
        "diff of stops": views.diff_view(
            line("paris", seed=1),
            line("rome", seed=2),
            compared=compared(samples.values(5, samples.WIDTH, seed=1), samples.values(5, samples.WIDTH, seed=2)),
        ),
    }


CARDS_OF_INFLUENCES = (
    views.stop_view(samples.paused(influences=samples.influences())),
    views.edit_view(samples.edited(), samples.paused(influences=samples.influences()), samples.effect()),
)
