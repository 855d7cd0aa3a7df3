"""Weights streamed through the ring against plain Hugging Face on the same device, whole or layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from djinn_evaluation.baselines.asking import Baseline, baseline
from djinn_evaluation.configuration.sections import LogitEquivalence, ValidationFile
from djinn_evaluation.course import Course, now, timed
from djinn_evaluation.link import measured_link, of_layers
from djinn_evaluation.serving import engine_for, finished, prompt_of
from djinn_evaluation.streaming.sides import Answer, compared
from djinn_evaluation.validation.opening import arrived, card_for, imposed, options_of, weights_of, with_link, within
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import LayerCopy

FILE = "logit_equivalence_results.json"
FIELDS = """passed is_match preds_match comparison_metrics pytorch_metrics ring_metrics bytes_streamed_per_pass
    timestamp""".split()
PROMPT, NEW = 16, 6
REFERENCES = {
    "resident": "plain Hugging Face, all weights on the device",
    "by_layer": "plain Hugging Face, whose layers are copied to the device by hand, one at a time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult(Answer):
    """One prompt on one side: answer, milliseconds of all passes, bytes moved in each."""

    milliseconds: float
    moved: tuple[int, ...] = ()
    copies: tuple[LayerCopy, ...] = ()


def run(course: Course, file: ValidationFile, wanted: LogitEquivalence) -> dict[str, Any]:
    """Run the test; return the fields of the result file."""
    assert file.ring_buffer is not None
    named = {"test": "logit_equivalence", "model": course.setup.named(wanted.model_id)}
    model = {"model": wanted.model_id, "dtype": wanted.dtype, "threads": 1, **course.setup.words()}
    with baseline("eager.ByHand") as hand:
        whole = hand.ask("sizes", **model)["weight_bytes"]
        limit = imposed(file, file.hardware.vram_limit_gb)
        card = card_for(file.ring_buffer.capacity_gb, limit, whole)
        options = {"dtype": wanted.dtype, **card.options(), **options_of(course, file)}
        with engine_for(course, wanted.model_id, **options) as engine:
            per_pass = weights_of(engine).bytes_streamed_per_pass
            prompts = [prompt_of(engine, PROMPT, seed=300 + n) for n in range(wanted.num_samples)]
            engine.session("first pass", fresh=True).run(prompts[0], max_new_tokens=2, ignore_eos=True)
            rings: list[PromptResult] = []
            for prompt in prompts:
                rings.append(_ours(course, engine, prompt, file.server.timeout_seconds))
                so_far = {"ring_metrics": _speed(rings), "bytes_streamed_per_pass": _per_pass(rings)}
                course.write_partial(FILE, FIELDS, {**named, **so_far})
                course.tell_more(f"sample {len(rings)}: {sum(rings[-1].moved)} bytes in {NEW} passes")
            device = engine.description.device
        layers = sorted({copy.layer for ring in rings for copy in ring.copies})
        plain = hand.ask("load", **model) | hand.ask("stream", layers=layers)
        mode = "resident" if plain["fits"] else "by_layer"
        plains = [_theirs(hand, prompt, mode) for prompt in prompts]
    same_device = not course.afar and device.partition(":")[0] == plain["device"].partition(":")[0]
    link, copies = measured_link(course, device), of_layers(copy for ring in rings for copy in ring.copies)
    fields = judge(wanted, plains, rings, same_device=same_device, streamed=per_pass, impossible=link.failures(copies))
    course.tell(f"logit equivalence over {len(rings)} samples: {fields['comparison_metrics']}")
    return {
        **named,
        **with_link(fields, link, copies),
        "reference": REFERENCES[mode],
        "pytorch_metrics": _speed(plains) | {"device": plain["device"], "weights_gb": whole / GIB},
        "ring_metrics": _speed(rings) | {"device_memory_gb": card.allowed / GIB, "ring_shrunk_to_stream": card.shrunk},
        "timestamp": now(),
    }


def judge(
    wanted: LogitEquivalence,
    plains: Sequence[PromptResult],
    rings: Sequence[PromptResult],
    *,
    same_device: bool,
    streamed: int,
    impossible: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the verdict over all samples; each metric is the worst sample's. On one device bits decide; on two the
    five most likely tokens, or the tolerances where predictions are not asked for. `streamed`: bytes that a pass has to
    move; `impossible`: the reasons why its copies cannot have been made."""
    found = compared(rings, plains, same_device=same_device)
    metrics = {name: found[name] for name in ("max_diff", "mean_diff", "norm_diff")}
    bitwise = all(plain.logits.tobytes() == ring.logits.tobytes() for plain, ring in zip(plains, rings, strict=True))
    likeliest = found["five_most_likely_equal"]
    near = metrics["norm_diff"] < wanted.tolerance_norm and metrics["max_diff"] < wanted.tolerance_max_diff
    elsewhere = "predictions" if wanted.pass_if_predictions_match else "tolerances"
    decided_by, moved = "bits" if same_device else elsewhere, _per_pass(rings)
    failures = {
        "Nothing streams: the weights are all on the device.": streamed > 0,
        "A pass moved other bytes than those that stream.": all(nbytes == streamed for nbytes in moved),
        "On the same device, the logits are not bitwise equal.": bitwise or decided_by != "bits",
        "The five most likely tokens, or tokens on the way, differ.": likeliest or decided_by != "predictions",
        "The logits differ by more than the tolerances.": near or decided_by != "tolerances",
    }
    said = [sentence for sentence, held in failures.items() if not held] + list(impossible)
    return {
        "passed": not said,
        "failures": said,
        "is_match": near,
        "preds_match": likeliest,
        "bitwise_equal": bitwise,
        "same_device": same_device,
        "decided_by": decided_by,
        "comparison_metrics": metrics,
        "bytes_streamed_per_pass": moved,
        "bytes_that_stream": streamed,
        "passes_per_sample": NEW,
    }


def _per_pass(rings: Sequence[PromptResult]) -> list[int]:
    return [nbytes for ring in rings for nbytes in ring.moved]


def _ours(course: Course, engine: RemoteEngine, prompt: list[int], timeout: float) -> PromptResult:
    course.check_time()
    session = engine.session("logit equivalence", fresh=True)
    last = max((copy.number for copy in arrived(engine, 0, timeout)), default=0)
    given: list[int] | None = prompt
    taken, tokens, moved = 0.0, [], []
    all_copies: list[LayerCopy] = []
    for _ in range(NEW):  # one by one, to know the bytes that each pass moved
        done, milliseconds = timed(partial(within, timeout, partial(_pass, session, given)))
        copies, given = arrived(engine, last, timeout), None
        last, taken = copies[-1].number if copies else last, taken + milliseconds
        tokens += done.tokens
        all_copies += copies
        moved.append(sum(copy.bytes_moved for copy in copies))
    return PromptResult(
        tokens=tuple(tokens), logits=done.logits, milliseconds=taken, moved=tuple(moved), copies=tuple(all_copies)
    )


def _pass(session: RemoteSession, prompt: list[int] | None) -> Finished:
    """Run one pass over the prompt, or without a prompt over the last token."""
    return finished(session.run(prompt, max_new_tokens=1, ignore_eos=True, extend=prompt is None))


def _theirs(hand: Baseline, prompt: list[int], mode: str) -> PromptResult:
    made = hand.ask("streamed_logits", tokens=prompt, new=NEW, mode=mode)
    return PromptResult(**asdict(Answer.of(made)), milliseconds=made["milliseconds"])


def _speed(samples: Sequence[PromptResult]) -> dict[str, float]:
    seconds = sum(sample.milliseconds for sample in samples) / 1000
    return {"elapsed_seconds": seconds, "tokens_per_second": sum(len(s.tokens) for s in samples) / seconds}
