"""nnsight's traces on an engine, beside the same traces on its own model: `make peers` installs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.wire import requests as ask
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.families import build
from tests.integrations import coming_from
from tests.integrations.sights import (
    NEEDS_NNSIGHT,
    OTHER,
    TEXT,
    both,
    demo_engine,
    on,
    patch_between_traces,
    plain_model,
    require_same,
)
from tests.threads import one_thread

pytestmark = NEEDS_NNSIGHT
LINE = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
FAMILIES = ("gpt2", "qwen3", "gpt_neox", "gemma2", "mixtral", "falcon", "opt")


@pytest.fixture(scope="module")
def engine() -> Iterator[RemoteEngine]:
    with demo_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def models(engine: RemoteEngine) -> Iterator[tuple[Any, Any]]:
    with both(engine) as pair:
        yield pair


# --- the same values --------------------------------------------------------------------------------------------------


def read_a_pass(model: Any) -> list[Tensor]:
    block = model.model.layers[2]
    with model.trace(TEXT) as tracer:
        values = [model.model.embed_tokens.output, model.model.layers[0].input]
        values += [block.self_attn.q_proj.output, block.self_attn.o_proj.input, block.self_attn.output[0]]
        values += [block.post_attention_layernorm.input, block.mlp.down_proj.input, block.mlp.output, block.output]
        values += [model.model.layers[3].input, model.model.norm.output, model.model.output.last_hidden_state]
        values += [model.lm_head.input, model.lm_head.output, model.output.logits, tracer.result.logits]
        values.save()
    return values


def edit_in_place_and_assign(model: Any) -> list[Tensor]:
    with model.trace(TEXT) as tracer:
        model.model.layers[1].output[:, -1] = 0
        model.model.layers[2].self_attn.output[0][:, :2] *= 3
        attention, weights = model.model.layers[3].self_attn.output
        model.model.layers[3].self_attn.output = (attention.flip(1), weights)
        model.model.layers[3].mlp.input = model.model.layers[3].mlp.input * 0.5
        model.model.layers[4].output = model.model.layers[4].output - 1.0
        model.model.layers[5].input[:, 0] = 2.0
        entering = model.model.layers[5].output.save()
        model.lm_head.input = model.lm_head.input * 2
        model.lm_head.output[:, 0] = 1.0
        logits = tracer.result.logits.save()
    return [entering, logits]


def generate(model: Any) -> list[Tensor]:
    with model.generate(TEXT, max_new_tokens=3, do_sample=False) as tracer:
        values = [].save()
        for step in tracer.iter[:]:
            if step == 1:
                model.model.layers[3].output[:] *= 0.25
            values.append(model.model.layers[5].output)
            values.append(model.lm_head.input)
            if step == 0:
                model.lm_head.output[:, -1, 77] = 1e6
            values.append(model.lm_head.output)
    with model.generate(TEXT, max_new_tokens=3, do_sample=False) as tracer:
        for _ in tracer.iter[1]:
            model.lm_head.output[:, -1, 78] = 1e6
        tokens = tracer.result.save()
    assert 78 in tokens
    return [*values, tokens, model.generate(TEXT, max_new_tokens=2, do_sample=False)]


def stream_tokens(model: Any) -> list[Tensor]:
    with model.generate(max_new_tokens=6, do_sample=False) as tracer:
        with tracer.invoke(TEXT):
            streamed = [].save()
            for _ in tracer.iter[:]:
                streamed.append(model.generator.streamer.output)
        with tracer.invoke("Paris is the capital of"):
            line = tracer.result.save()
        with tracer.invoke():
            both = tracer.result.save()
    return [*streamed, line, both]


def several_invokes(model: Any) -> list[Tensor]:
    with model.trace() as tracer:
        barrier = tracer.barrier(2)
        with tracer.invoke(TEXT):
            taken = model.model.layers[3].output[:, -1].save()
            barrier()
            logits = model.lm_head.output.save()
        with tracer.invoke(OTHER):
            barrier()
            model.model.layers[3].output[:, -1] = taken
            patched = model.lm_head.output.save()
        with tracer.invoke():
            both = model.model.norm.output.save()
    return [taken, logits, patched, both]


def the_same_one_by_one(model: Any) -> list[Tensor]:
    with model.trace(TEXT):
        taken = model.model.layers[3].output[:, -1].save()
        first = model.model.norm.output.save()
        logits = model.lm_head.output.save()
    with model.trace(OTHER):
        model.model.layers[3].output[:, -1] = taken
        second = model.model.norm.output.save()
        patched = model.lm_head.output.save()
    return [taken, logits, patched, torch.cat([first, second])]


def every_way_of_nnsight(model: Any) -> list[Tensor]:
    import nnsight

    with model.edit() as (_, edited):
        edited.model.layers[2].output[:] *= 0.5
    with edited.trace(TEXT):
        halved = model.lm_head.output.save()
    with model.session():
        with model.trace(TEXT):
            hidden = model.model.layers[2].output[:, -1]
        with model.trace(OTHER):
            model.model.layers[2].output[:, -1] = hidden
            patched = model.lm_head.output
        nnsight.save(patched)
    with model.trace(TEXT) as tracer:
        stopped = model.model.layers[3].output.save()
        tracer.stop()
    with model.trace(TEXT) as tracer:
        cache = tracer.cache(modules=[model.model.layers[1], model.model.layers[6].mlp], include_inputs=True)
    kept = [cache["model.model.layers.1"].output, cache["model.model.layers.6.mlp"].input]
    return [halved, patched, stopped, *kept, model.trace(TEXT, trace=False).logits]


TRACES: tuple[Callable[[Any], list[Tensor]], ...] = (
    read_a_pass,
    edit_in_place_and_assign,
    patch_between_traces,
    generate,
    stream_tokens,
    every_way_of_nnsight,
)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.__name__)
def test_a_trace_finds_the_bits_of_its_own_model(models: tuple[Any, Any], trace: Callable[[Any], list[Tensor]]) -> None:
    for _ in range(2):
        require_same(*map(trace, models))


def test_several_invokes_have_the_bits_of_each_line_alone(models: tuple[Any, Any]) -> None:
    """Each is in a session of its own. In one batch of nnsight's own model the rows may have others, by the kernel."""
    ours, own = models
    for _ in range(2):
        found = several_invokes(ours)
        require_same(found, the_same_one_by_one(own))
        for one, other in zip(found, several_invokes(own), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_bfloat16_and_a_callers_inference_mode_have_the_same_bits() -> None:
    with demo_engine("bfloat16") as engine:
        ours, plain = on(engine), plain_model(dtype="bfloat16")
        for trace in TRACES:
            with torch.inference_mode():
                require_same(trace(ours), trace(plain))
        ours.close()


def test_a_long_line_runs_in_one_pass(models: tuple[Any, Any]) -> None:
    def halve_late(model: Any) -> list[Tensor]:
        with model.trace(TEXT * 150):
            model.model.layers[6].output[:, 600:] *= 0.5
            logits = model.lm_head.output.save()
        return [logits]

    require_same(*map(halve_late, models))


def test_drawn_tokens_are_those_of_a_run_of_the_engine(models: tuple[Any, Any], engine: RemoteEngine) -> None:
    ours, _ = models
    found = ours.generate(TEXT, max_new_tokens=9, do_sample=True, temperature=3.0, top_k=40, seed=5)
    session = engine.session("drawn")
    ran = session.run(TEXT, max_new_tokens=9, temperature=3.0, top_k=40, seed=5, model_defaults=True)
    session.close()
    assert tuple(found[0, 5:].tolist()) == ran.tokens
    assert ran.tokens != tuple(ours.generate(TEXT, max_new_tokens=9, do_sample=False)[0, 5:].tolist())


def test_tokens_are_drawn_anew_for_each_call_and_line(models: tuple[Any, Any]) -> None:
    """From torch's generator, as transformers draws: `torch.manual_seed` repeats a call, and so does `seed`."""
    ours, _ = models

    def drawn(texts: str | list[str] = TEXT, **given: Any) -> list[list[int]]:
        ids: Tensor = ours.generate(texts, max_new_tokens=9, do_sample=True, temperature=3.0, **given)
        return ids.tolist()

    assert len({str(drawn()) for _ in range(4)}) == 4
    assert len({str(row) for row in drawn([TEXT] * 4)}) == 4
    assert drawn([TEXT] * 2, seed=5) == drawn([TEXT] * 2, seed=5) == [*drawn(seed=5), *drawn(seed=6)]
    repeated = []
    for _ in range(2):
        torch.manual_seed(3)
        repeated.append([drawn(), drawn()])
    assert repeated[0] == repeated[1]


def test_a_cache_of_everything_has_all_that_is_served(models: tuple[Any, Any]) -> None:
    caches = []
    for model in models:
        with model.trace(TEXT) as tracer:
            cache = tracer.cache()
        caches.append(cache)
    assert set(caches[1].keys()) - set(caches[0].keys()) == {"model.model.rotary_emb"}
    for layer in range(8):
        one, other = (cache[f"model.model.layers.{layer}"].output for cache in caches)
        assert torch.equal(one, other)


def test_shapes_are_scanned_without_a_pass(models: tuple[Any, Any], engine: RemoteEngine) -> None:
    import nnsight

    ours, _ = models
    asked = len(engine.channel.requests)
    with ours.scan(TEXT):
        shape = nnsight.save(ours.model.layers[3].output.shape)
    assert (shape, len(engine.channel.requests)) == ((1, 5, 128), asked)


def test_lines_of_several_lengths_are_read_beside_their_padding(models: tuple[Any, Any]) -> None:
    """Each runs alone here, and in one padded batch there: equal but for rounding. Padding has no numbers here."""
    found = []
    for model in models:
        with model.trace() as tracer:
            with tracer.invoke(TEXT):
                one = model.lm_head.output.save()
            with tracer.invoke("France is"):
                model.model.layers[3].output[:] *= 0.5
                other = model.lm_head.output[:, -2:].save()
            with tracer.invoke():
                whole = model.model.norm.output.save()
        found.append((one, other, whole))
    for ours, theirs in zip(found[0][:2], found[1][:2], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert found[0][2].isnan().any(-1).tolist() == [[False] * 5, [True] * 3 + [False] * 2]


def test_nothing_but_sites_and_numbers_crosses(engine: RemoteEngine) -> None:
    ours = on(engine)
    before = len(engine.channel.requests)
    with torch.no_grad():
        edit_in_place_and_assign(ours)
    sent = {type(request) for request in engine.channel.requests[before:]}
    ours.close()
    known = {ask.ListSessions, ask.Open, ask.SetBreakpoint, ask.ClearBreakpoints, ask.Run, ask.Inspect}
    assert sent == known | {ask.ResumeWith, ask.ReadPass}


# --- families ---------------------------------------------------------------------------------------------------------


def read_and_halve(model: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return the value at a location and the logits where half of it is put in its place."""
    from djinn_jupyter.integrations.nnsight.locations import first_tensor

    path, _, side = name.removeprefix("model").rpartition(".")
    module = model.get(path.removeprefix(".")) if path else model
    with torch.no_grad(), model.trace(LINE) as tracer:
        whole = module.input if side == "input" else module.output
        seen = first_tensor(whole).clone().save()
        if side == "input":
            module.input = whole * 0.5
        elif isinstance(whole, Tensor):
            module.output = whole * 0.5
        elif isinstance(whole, tuple):
            module.output = (whole[0] * 0.5, *whole[1:])
        else:
            key = next(iter(whole))
            whole[key] = whole[key] * 0.5
            module.output = whole
        logits = tracer.result.logits.save()
    return seen, logits


@pytest.mark.parametrize("family", FAMILIES)
def test_every_location_that_is_served_has_its_models_bits_and_takes_its_edits(family: str, tmp_path: Path) -> None:
    from nnsight import NNsight

    build(family, layers=3).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_PATH / file, tmp_path)
    with one_thread(), reached(build_desk(build(family, layers=3))) as [engine]:
        ours, plain = on(engine, tmp_path), NNsight(build(family, layers=3).eval())
        layers, refused, served, unread = ours._locations.layers, {}, [], list[str]()
        for name in ours._locations.order:
            if name.startswith((layers[0], layers[2])) or name.endswith("attention_probabilities"):
                continue
            try:
                found = read_and_halve(ours, name)
            except NotImplementedError as why:
                refused[name] = str(why)
                continue
            except InvalidEdit as why:
                unread.append(str(why))
                continue
            served.append(name)
            require_same(found, read_and_halve(plain, name))
        ours.close()
    assert {f"{layers[1]}.input", f"{layers[1]}.output", "model.output"} <= set(served)
    assert all(why.startswith(f"{name} is not served: ") for name, why in refused.items())
    assert all("nothing in the model reads it" in why for why in unread)
    assert len(served) > len(refused)


# --- nnterp's names ---------------------------------------------------------------------------------------------------


def test_nnterps_names_read_and_change_the_same(engine: RemoteEngine) -> None:
    ours, plain = on(engine, attention="eager"), plain_model("eager")
    with torch.no_grad(), plain.trace(TEXT):
        embedded = plain.model.embed_tokens.output.save()
        attention, pattern = (part.save() for part in plain.model.layers[2].self_attn.output)
        mlp = plain.model.layers[2].mlp.output.save()
        plain.model.layers[3].output = plain.model.layers[3].output * 0.5
        entering = plain.model.layers[4].input.save()
        logits = plain.output.logits.save()
    with ours.trace(TEXT):
        found = [ours.token_embeddings, ours.attention_probabilities[2], ours.attentions_output[2], ours.mlps_output[2]]
        ours.layers_output[3] = ours.layers_output[3] * 0.5
        found += [ours.layers_input[4], ours.logits]
        found.save()
    require_same(found, [embedded, pattern, attention, mlp, entering, logits])
    with ours.trace(TEXT):
        ours.attention_probabilities[2] = ours.attention_probabilities[2] * 0.5
        halved = ours.attentions_output[2].save()
    assert torch.allclose(halved, attention * 0.5, rtol=1e-5, atol=1e-6)
    assert ours.num_layers == len(ours.layers_output) == 8
    ours.close()


def test_a_module_is_called_by_itself_where_the_tree_has_weights(engine: RemoteEngine) -> None:
    ours, plain = on(engine, weights=True), plain_model()
    lenses = []
    for model in (ours, plain):
        with torch.no_grad(), model.trace(TEXT):
            lens = model.lm_head(model.model.norm(model.model.layers[4].output)).save()
            logits = model.lm_head.output.save()
        lenses.append((lens, logits))
    require_same(*lenses)
    ours.close()


def test_the_lines_of_the_page_run(tmp_path: Path) -> None:
    left = coming_from.run("nnsight on an engine", tmp_path)
    theirs = coming_from.run("nnsight", tmp_path)
    assert torch.equal(left["patched"], theirs["patched"])
    assert left["tokens"].shape == (1, 8)
    for entry in running_engines():
        dj.attach(entry).stop(force=True, forget=True)
