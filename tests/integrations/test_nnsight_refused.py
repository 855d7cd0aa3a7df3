"""What nnsight's traces on an engine are refused, and what becomes of one that ends early: `make peers` installs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.errors import EngineUnavailable, UsageError
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.wire import requests as ask
from tests.families import build
from tests.integrations import coming_from
from tests.integrations.sights import (
    NEEDS_NNSIGHT,
    TEXT,
    both,
    demo_engine,
    on,
    patch_between_traces,
    plain_model,
    require_same,
)

pytestmark = NEEDS_NNSIGHT
LINE = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])


@pytest.fixture(scope="module")
def engine() -> Iterator[RemoteEngine]:
    with demo_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def models(engine: RemoteEngine) -> Iterator[tuple[Any, Any]]:
    with both(engine) as pair:
        yield pair


# --- what goes wrong --------------------------------------------------------------------------------------------------


def late(model: Any) -> None:
    with model.trace(TEXT):
        early = model.model.layers[2].output
        model.model.layers[3].output.sum()
        early[:] = 0
        model.lm_head.output.save()


def late_on_what_was_assigned(model: Any) -> None:
    with model.trace(TEXT):
        assigned = model.model.layers[2].output * 2
        model.model.layers[2].output = assigned
        model.model.layers[3].output.sum()
        assigned[:] = 0
        model.lm_head.output.save()


def skipped(model: Any) -> None:
    with model.trace(TEXT):
        model.model.layers[2].skip(model.model.layers[2].input)


def within(model: Any) -> None:
    with model.trace(TEXT):
        model.model.layers[2].mlp.source.self_act_fn_0.output.save()


def rotary(model: Any) -> None:
    with model.trace(TEXT):
        model.model.rotary_emb.output.save()


def token_ids(model: Any) -> None:
    with model.trace(TEXT):
        model.model.embed_tokens.input.save()


def other_part(model: Any) -> None:
    with model.trace(TEXT):
        model.model.layers[3].inputs[1]["position_ids"] + 1


def other_part_replaced(model: Any) -> None:
    with model.trace(TEXT):
        model.model.layers[3].self_attn.output = (model.model.layers[3].self_attn.output[0], 1)
        model.lm_head.output.save()


def other_form(model: Any) -> None:
    with model.trace(TEXT):
        model.model.layers[3].self_attn.output = model.model.layers[3].self_attn.output[0]
        model.lm_head.output.save()


def shared_input(model: Any) -> None:
    with model.trace(TEXT):
        model.model.layers[3].self_attn.q_proj.input[:] = 0


def other_shape(model: Any) -> None:
    with model.trace(TEXT):
        model.model.layers[3].output = torch.zeros(1, 2, 128)


def own_call(model: Any) -> None:
    with model.trace(TEXT):
        model.lm_head(model.model.layers[3].output).save()


def own_trace(model: Any) -> None:
    with model.model.layers[3].trace(torch.zeros(1, 3, 128)):
        model.model.layers[3].output.save()


def named_in_a_cache(model: Any) -> None:
    with model.trace(TEXT) as tracer:
        tracer.cache(modules=[model.model.rotary_emb])


def a_pipeline(model: Any) -> None:
    with model.pipe(TEXT, max_new_tokens=3):
        model.model.layers[3].output.save()


def a_setting(model: Any) -> None:
    with model.trace(TEXT, output_hidden_states=True):
        model.model.layers[3].output.save()


def beams(model: Any) -> None:
    with model.generate(TEXT, max_new_tokens=3, num_beams=2):
        model.model.layers[3].output.save()


def a_mask_within(model: Any) -> None:
    with model.trace(input_ids=LINE, attention_mask=torch.tensor([[1, 1, 0, 1, 1, 1, 1]])):
        model.model.layers[3].output.save()


REFUSED: tuple[tuple[Callable[[Any], None], type[Exception], str], ...] = (
    (late, NotImplementedError, r"layers\.2\.output was changed in place after the pass had gone on"),
    (late_on_what_was_assigned, NotImplementedError, r"layers\.2\.output was changed in place after"),
    (skipped, NotImplementedError, r"layers\.2\.skip: an engine runs every module"),
    (within, NotImplementedError, r"self_act_fn_0\.output is not served: what a module does within"),
    (rotary, NotImplementedError, r"rotary_emb\.output is not served: its tensor does not begin with lines"),
    (token_ids, NotImplementedError, r"embed_tokens\.input is not served: it holds no tensor of activations"),
    (other_part, NotImplementedError, r"\['position_ids'\] stays in the engine's process"),
    (other_part_replaced, UsageError, r"self_attn\.output: .*the first tensor is changed, and no other part"),
    (other_form, UsageError, r"self_attn\.output is a tuple of 2; it was replaced by a Tensor"),
    (shared_input, NotImplementedError, r"q_proj\.input was changed in place, .* assign the changed value"),
    (other_shape, UsageError, r"has the shape \(1, 5, 128\); it was replaced by one of \(1, 2, 128\)"),
    (own_call, NotImplementedError, r"model\.lm_head has no weights in this process"),
    (own_trace, NotImplementedError, r"layers\.3 is not traced by itself"),
    (named_in_a_cache, NotImplementedError, r"rotary_emb\.output is not served"),
    (a_pipeline, NotImplementedError, "does not run 'pipe'"),
    (a_setting, NotImplementedError, "does not take 'output_hidden_states'"),
    (beams, NotImplementedError, "does not take 'num_beams'"),
    (a_mask_within, NotImplementedError, "masked at one end"),
)


def test_the_settings_of_a_generation_that_the_page_lists_are_refused_by_name(models: tuple[Any, Any]) -> None:
    said = coming_from.PAGE.read_text(encoding="utf-8").partition("Any other is refused by name:")[2]
    names = re.findall(r"`(\w+)`", said.partition(".\n")[0])
    assert len(names) == 11
    for name in names:
        with pytest.raises(NotImplementedError, match=f"does not take '{name}'"):
            models[0].generate(TEXT, max_new_tokens=3, **{name: 2})
    with pytest.raises(UsageError, match="max_new_tokens"):
        models[0].generate(TEXT, max_new_tokens=2.5)


@pytest.mark.parametrize(("trace", "error", "sentence"), REFUSED, ids=lambda one: getattr(one, "__name__", ""))
def test_what_an_engine_does_not_serve_is_refused_in_a_sentence(
    models: tuple[Any, Any], trace: Callable[[Any], None], error: type[Exception], sentence: str
) -> None:
    ours, plain = models
    with pytest.raises(error, match=sentence):
        trace(ours)
    require_same(patch_between_traces(ours), patch_between_traces(plain))


def divided_by_nothing(model: Any) -> None:
    with model.trace(TEXT):
        hidden = model.model.layers[2].output
        hidden / (1 // 0)


def interrupted_itself(model: Any) -> None:
    with model.trace(TEXT):
        model.model.layers[2].output.sum()
        signal.raise_signal(signal.SIGINT)


def read(model: Any, *layers: int) -> None:
    with model.trace(TEXT):
        for layer in layers:
            model.model.layers[layer].output.sum()


def killed(model: Any, pid: int) -> None:
    with model.trace(TEXT):
        model.model.layers[2].output.sum()
        os.kill(pid, signal.SIGKILL)
        model.model.layers[3].output.save()


def gone_backward(model: Any) -> None:
    with model.trace(TEXT):
        model.lm_head.output.sum().backward()


def names_of(engine: RemoteEngine) -> set[str]:
    return {session.name for session in engine.sessions() if session.name.startswith("nnsight")}


def line_of(error: BaseException) -> str:
    """Return the line of this file where an error was raised."""
    here = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
    return str(here[-1])


def test_an_error_of_the_users_says_where_and_the_model_goes_on(models: tuple[Any, Any]) -> None:
    ours, plain = models
    with pytest.raises(ZeroDivisionError) as raised:
        divided_by_nothing(ours)
    assert line_of(raised.value) == "hidden / (1 // 0)"
    with pytest.raises(NotImplementedError) as refused:
        rotary(ours)
    assert line_of(refused.value) == "model.model.rotary_emb.output.save()"
    require_same(patch_between_traces(ours), patch_between_traces(plain))


def test_a_location_that_was_passed_is_out_of_order_as_in_nnsight(models: tuple[Any, Any]) -> None:
    from nnsight.intervention.interleaver import OutOfOrderError

    for model in models:
        with pytest.raises(OutOfOrderError, match=r"layers\.2\.output"):
            read(model, 3, 2)


def test_gradients_are_said_to_be_elsewhere(models: tuple[Any, Any]) -> None:
    ours, _ = models
    with torch.enable_grad(), pytest.raises(RuntimeError) as raised:
        gone_backward(ours)
    assert any("dj.attribute" in note for note in raised.value.__notes__)


def test_an_interrupt_ends_a_trace_and_the_next_one_runs(
    models: tuple[Any, Any], engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, plain = models
    with pytest.raises(KeyboardInterrupt):
        interrupted_itself(ours)
    require_same(patch_between_traces(ours), patch_between_traces(plain))
    asks = engine.channel.ask

    def interrupted(request: Any) -> Any:
        reply = asks(request)
        if isinstance(request, ask.ResumeWith):
            monkeypatch.undo()
            reply.result = lambda timeout=None: signal.raise_signal(signal.SIGINT)
        return reply

    monkeypatch.setattr(engine.channel, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(ours, 2, 5)
    stood = names_of(engine)
    require_same(patch_between_traces(ours), patch_between_traces(plain))
    assert stood
    assert not stood & names_of(engine)


def test_another_model_is_refused(engine: RemoteEngine, tmp_path: Path) -> None:
    build("llama", layers=3).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_PATH / file, tmp_path)
    with pytest.raises(UsageError, match="has 8 layers"):
        on(engine, tmp_path)
    build("llama", layers=8).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="name the same model"):
        on(engine, tmp_path)
    with pytest.raises(UsageError, match="does not say where its model is"):
        on(engine, None)


# --- an engine's own process ------------------------------------------------------------------------------------------


def halved(model: Any, layer: int) -> Tensor:
    with model.trace(TEXT):
        model.model.layers[layer].output[:] *= 0.5
        logits = model.lm_head.output.save()
    return logits


def interrupted_while_it_runs(model: Any, engine: RemoteEngine) -> None:
    """Generate at random, which takes seconds with this seed (with others the text may end), and interrupt it when
    the engine says that it runs."""

    def interrupt() -> None:
        while all(session.state != "running" for session in engine.sessions()):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        model.generate(TEXT, max_new_tokens=900, do_sample=True, temperature=1e3, top_k=0, seed=1)
    finally:
        thread.join(60)


def test_two_traces_run_at_once_an_interrupted_one_ends_and_a_killed_engine_is_one_sentence() -> None:
    engine = dj.load("demo")
    try:
        pair, plain = {2: on(engine, None), 5: on(engine, None)}, plain_model()
        found: dict[int, list[Tensor]] = {2: [], 5: []}
        both = threading.Barrier(2)

        def run(layer: int) -> None:
            for _ in range(5):
                both.wait(60)
                found[layer].append(halved(pair[layer], layer))

        threads = [threading.Thread(target=run, args=(layer,)) for layer in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        with torch.no_grad():
            for layer, logits in found.items():
                require_same(logits, [halved(plain, layer)] * 5)
        with pytest.raises(KeyboardInterrupt):
            interrupted_while_it_runs(pair[2], engine)
        with torch.no_grad():
            require_same([halved(pair[2], 2)], [halved(plain, 2)])
        assert engine.entry is not None
        with pytest.raises(EngineUnavailable, match=r"The engine of demo \(process \d+\) has ended"):
            killed(pair[2], engine.entry.pid)
        again = on(dj.load("demo"), None)
        with torch.no_grad():
            require_same([halved(again, 2)], [halved(plain, 2)])
    finally:
        for entry in running_engines():
            dj.attach(entry).stop(force=True, forget=True)
