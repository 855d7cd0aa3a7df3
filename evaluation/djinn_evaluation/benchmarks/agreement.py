"""One model, one line, five tools, one of them on an engine too: values at five sites of a layer, and logits where a
vector is added to its output, against plain PyTorch with hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks.environments import NotRun, peer_python
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import worker
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.integrations.lines import HookedLines

LINE: Final = (5, 6, 7, 8, 9, 10, 11, 12)
LAYER: Final = 4
SITES: Final = ("resid_post", "attn_out", "mlp_out", "z", "pattern")
ON_DJINN: Final = "nnsight on djinn"
PEERS: Final = {"nnsight": "nnsight", "transformer-lens": "transformer_lens", "interp-engine": "interp_engine"}
TOLERANCE: Final = 1e-4
Values = dict[str, "np.ndarray[Any, Any]"]


def run(setting: Setting) -> Result:
    vector = np.random.default_rng(0).standard_normal(128).astype(np.float32).tolist()
    plain = _asked("plain_hooks", None, vector)
    checks, figures = Checks(), [figure_of("djinn", lambda: _djinn(setting, vector), plain)]
    for site, values in _djinn(setting, vector).items():
        checks.same("values of Djinn that are plain PyTorch's bit for bit", values.tolist(), plain[site].tolist())
    for tool, module in PEERS.items():
        figures.append(
            figure_of(tool, lambda at=tool, of=module: _asked(of, at, vector), plain)  # type: ignore[misc]
        )
    figures.append(figure_of(ON_DJINN, lambda: _on_djinn(setting, vector), plain))
    settings = {"model": "demo", "line": LINE, "layer": LAYER, "sites": SITES, "tolerance": TOLERANCE}
    return Result(benchmark="agreement", settings=settings, figures=tuple(figures), checks=checks.counts)


def figure_of(tool: str, found: Callable[[], Values], plain: Values) -> Figure:
    """Return by how much a tool differs from plain PyTorch at most, of the largest number of each value."""
    not_run, value = None, None
    try:
        theirs = found()
        value = Spread.of([max(_far(theirs[site], plain[site]) for site in plain)])
    except (NotRun, BaselineFailed) as why:
        not_run = str(why)
    return Figure(
        name=f"{tool}: values and edited logits from plain PyTorch's",
        unit="of the largest",
        value=value,
        bar=at_most(TOLERANCE),
        not_run=not_run,
    )


def _far(theirs: np.ndarray[Any, Any], ours: np.ndarray[Any, Any]) -> float:
    return float(np.abs(theirs - ours).max() / np.abs(ours).max())


def _asked(module: str, tool: str | None, vector: list[float], on: str = "") -> Values:
    """Return what a worker finds, by site; `logits` as they are, `edited` where the vector is added."""
    with worker(f"with_{module}", *(() if tool is None else (peer_python(tool),))) as asked:
        asked.ask(f"open{on}", folder=str(MODEL_PATH))
        looked = asked.ask(f"look{on}", tokens=LINE, layer=LAYER)
        edited = asked.ask(f"add{on}", tokens=LINE, layer=LAYER, vector=vector)["logits"]
    return {site: np.array(value, dtype=np.float32) for site, value in {**looked, "edited": edited}.items()}


def _djinn(setting: Setting, vector: list[float]) -> Values:
    with engine_of("demo", setting) as engine:
        lines = HookedLines(engine.channel, lambda number: _eager(engine))
        sites = {site: f"{site}.{LAYER}" for site in SITES}
        seen = lines.run([LINE], changes={}, read=sites.values())
        along = np.array(vector, dtype=np.float32)
        added = lines.run([LINE], changes={f"resid_post.{LAYER}": [lambda value: value + along]})
        assert seen.logits is not None
        assert added.logits is not None
        found = {site: seen.values[spelled][0] for site, spelled in sites.items()}
        return {**found, "logits": seen.logits[0], "edited": added.logits[0]}


def _on_djinn(setting: Setting, vector: list[float]) -> Values:
    with engine_of("demo", setting):
        return _asked("nnsight", "nnsight", vector, on="_on_djinn")


def _eager(engine: RemoteEngine) -> str:
    return engine.session("agreement", fresh=True, attention="eager").name
