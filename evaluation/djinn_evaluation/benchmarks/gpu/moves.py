"""The step of moves: a session of 2,048 tokens on 13B-shaped weights leaves the device and comes back.

Its speed against plain copies of the same bytes, and how long a session that had left is waited for.
"""

from __future__ import annotations

from typing import Final

from djinn_evaluation.benchmarks import prefetch, swap
from djinn_evaluation.benchmarks.gpu.serving import TINY_PAGE, scale_of, serving
from djinn_evaluation.benchmarks.gpu.shapes import THIRTEEN, saved, shape
from djinn_evaluation.benchmarks.results import Checks, Result
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.serving import random_tokens

ROUNDS: Final = 5
TIERS: Final = ("host",)


def run(setting: Setting) -> Result:
    config, checks = shape(THIRTEEN, scale_of(setting)), Checks()
    positions = scale_of(setting).of(2048, 6 * TINY_PAGE)
    prompt = random_tokens(positions, config["vocab_size"])
    with serving(saved(config), setting) as engine:
        session = engine.session("one", fresh=True)
        speeds, nbytes = swap.moves(session, prompt, TIERS, setting, checks)
        setting.so_far(speeds, "the moves, not yet their stalls")
        stalls = prefetch.waits(engine, session, prompt, TIERS, setting, setting.rounds(ROUNDS), checks, speeds)
    settings = {"shape": config, "positions": positions, "bytes_of_a_session": nbytes}
    return Result(benchmark="moves", settings=settings, figures=(*speeds, *stalls), checks=checks.counts)
