"""A resume at layer k against the ideal: layers k.. and the head alone, by plain PyTorch from a saved hidden state."""

from __future__ import annotations

from time import perf_counter

from djinn_evaluation.benchmarks.measuring import Spread, in_milliseconds, take_turns
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most, compared, milliseconds
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.digest import digest
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished

POSITIONS = 256
BAR, DECODE_MILLISECONDS = 1.05, 0.5
ROUNDS, ROUNDS_IN_DECODE = 9, 25


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    prompt = random_tokens(POSITIONS, shape.vocabulary)
    figures: list[Figure] = []
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        plain.ask("remember", tokens=prompt)
        with engine_of(folder, setting) as engine:
            session = engine.session("resume", fresh=True)
            for layer in layers_of(shape):
                figures.append(_in_prefill(layer, prompt, session, plain, setting.rounds(ROUNDS), checks))
                setting.so_far(figures, f"up to layer {layer} of the prompt")
            plain.ask("remember", tokens=[*prompt, _first_token(session, prompt)])
            for layer in layers_of(shape):
                figures += _in_decode(layer, prompt, session, plain, setting.rounds(ROUNDS_IN_DECODE), checks)
                setting.so_far(figures, f"up to layer {layer} of a decode step")
    settings = {"shape": shape, "positions": POSITIONS, "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="resume", settings=settings, figures=tuple(figures), checks=checks.counts)


def layers_of(shape: Shape) -> list[int]:
    last = shape.layers
    return [1, last // 4, last // 2, 3 * last // 4, last - 1]


def stop_at(session: RemoteSession, layer: int, prompt: list[int], *, step: int) -> None:
    """Run until `layer` layers of the pass of `step` have run; the pass is the last of its run."""
    session.clear()
    session.breakpoint(f"resid_post.{layer - 1}", when=f"step == {step}")
    session.run(prompt, max_new_tokens=step + 1, ignore_eos=True)


def _first_token(session: RemoteSession, prompt: list[int]) -> int:
    session.clear()
    return int(session.run(prompt, max_new_tokens=1, ignore_eos=True).tokens[0])


def _in_prefill(
    layer: int, prompt: list[int], session: RemoteSession, plain: Worker, rounds: int, checks: Checks
) -> Figure:
    stop_at(session, layer, prompt, step=0)
    readings = _against(session, plain, "from_layer", layer, rounds, checks)
    name = f"resume at layer {layer} of the prompt, of the ideal"
    return compared(name, "djinn", "ideal", readings, unit="ms", each=milliseconds, bar=at_most(BAR))


def _in_decode(
    layer: int, prompt: list[int], session: RemoteSession, plain: Worker, rounds: int, checks: Checks
) -> list[Figure]:
    stop_at(session, layer, prompt, step=1)
    readings = _against(session, plain, "from_layer_in_decode", layer, rounds, checks)
    beyond = [1000 * (ours - BAR * ideal) for ours, ideal in zip(readings["djinn"], readings["ideal"], strict=True)]
    return [
        Figure(
            name=f"resume at layer {layer} of a decode step, beyond {BAR} x the ideal",
            unit="ms",
            value=Spread.of(beyond),
            bar=at_most(DECODE_MILLISECONDS),
            sides=_milliseconds(readings),
            sides_unit="ms",
        )
    ]


def _against(
    session: RemoteSession, plain: Worker, ideal: str, layer: int, rounds: int, checks: Checks
) -> dict[str, list[float]]:
    bits: dict[str, str] = {}

    def ours() -> float:
        begun = perf_counter()
        done = session.resume(free=True)
        seconds = perf_counter() - begun
        assert isinstance(done, Finished)
        bits["djinn"] = digest(done.logits)
        session.back()
        return seconds

    def theirs() -> float:
        answer = plain.ask(ideal, layer=layer)
        if "djinn" in bits:
            checks.same("last logits, bit for bit", bits["djinn"], answer["digest"])
        return float(answer["seconds"])

    return take_turns({"djinn": ours, "ideal": theirs}, rounds=rounds)


def _milliseconds(readings: dict[str, list[float]]) -> dict[str, Spread | None]:
    return {name: in_milliseconds(values) for name, values in readings.items()}
