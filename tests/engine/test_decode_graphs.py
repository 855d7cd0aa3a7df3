"""Decode steps by graphs: the bits of steps without, whatever is armed, edited or moved in between."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.process import build as startup
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused, UsageError
from djinn_jupyter.parallel import graphs as decode_graphs
from djinn_jupyter.parallel.graphs import DecodeGraphs, LayerGraph, notes_on, record
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, Outcome, build_desk, desk_of, tokens
from tests.families import FAMILIES, build
from tests.recorded_graphs import CountedGraphs, RecordedGraphs, a_recorder

LAYERS, NEW = 8, 6
PASSES = NEW - 1  # over one token; the prompt's gives the first
# The layers that are recorded, and why the others are not.
SHOWN = {
    "llama": (8, ""),
    "gpt2": (8, ""),
    "mixtral": (8, ""),
    "gemma3_text": (2, "it computes between the cache's update and its attention"),
    "falcon": (0, "its attention takes a mask"),
    "falcon_h1": (0, "it has a recurrent state"),
    "dbrx": (0, "operation not permitted when stream is capturing"),
}

REFUSED_HERE = ("recurrent_gemma",)  # its modules keep a state


def outcome(desk: Desk, name: str = "a", new: int = NEW) -> Outcome:
    desk.open(name)
    return desk.outcome(desk.run(tokens(9), new, name), name)


@contextmanager
def by_graphs(desk: Desk) -> Iterator[DecodeGraphs]:
    """Give a shared engine graphs for a while."""
    graphs = desk.engine.forward.graphs = DecodeGraphs(desk.engine.anatomy, a_recorder())
    try:
        yield graphs
    finally:
        desk.engine.forward.graphs = None
        desk.close_all()


def the_same(family: str) -> DecodeGraphs:
    desk = desk_of(family)
    plain = outcome(desk)
    with by_graphs(desk) as graphs:
        assert outcome(desk) == plain  # while recording
        assert outcome(desk) == plain
    return graphs


@pytest.mark.parametrize("family", SHOWN)
def test_steps_by_graphs_have_the_bits_of_steps_without_and_layers_that_have_none_are_told(family: str) -> None:
    graphs, (recorded, why) = the_same(family), SHOWN[family]
    assert graphs.recorded == recorded
    assert len(graphs.plain) == LAYERS - recorded
    assert all(why in reason for reason in graphs.plain.values())
    assert bool(graphs.replayed) == bool(recorded)


def test_attention_that_is_called_by_keywords_is_told_and_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.nn.functional.scaled_dot_product_attention

    def by_keywords(query: Any, key: Any, value: Any, **others: Any) -> Any:
        return own(query=query, key=key, value=value, **others)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", by_keywords)
    graphs = the_same("llama")
    assert graphs.recorded == 0
    assert set(graphs.plain.values()) == {"its attention does not read the cache's rows as they are"}


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*SHOWN, *REFUSED_HERE}))
def test_steps_by_graphs_have_the_bits_of_steps_without_in_every_family(family: str) -> None:
    the_same(family)


# --- one engine that was started with graphs, beside the same without ------------------------------------------------


@pytest.fixture(scope="module")
def recorder() -> RecordedGraphs | CountedGraphs:
    return a_recorder()


@pytest.fixture(scope="module")
def graphed(recorder: RecordedGraphs | CountedGraphs) -> Desk:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "recorder_on", lambda device: recorder)
        return build_desk(build("llama"), cuda_graphs=True)


@pytest.fixture
def pair(graphed: Desk, llama: Desk) -> Iterator[tuple[Desk, Desk]]:
    yield graphed, llama
    graphed.close_all()


def replayed(desk: Desk) -> int:
    graphs = desk.engine.forward.graphs
    return 0 if graphs is None else graphs.replayed


def alike(pair: tuple[Desk, Desk], act: Callable[[Desk], Any]) -> None:
    one, other = (act(desk) for desk in pair)
    assert one == other


def test_the_self_test_records_every_layer_and_the_description_says_so(graphed: Desk) -> None:
    assert graphed.engine.description.notes == ("Decode steps run 8 of 8 layers by CUDA graphs.",)
    assert all(check.passed for check in graphed.engine.description.checks)
    (long,) = [check.name for check in graphed.engine.description.checks if "graphs" in check.name]
    assert re.fullmatch(r"steps by CUDA graphs after [1-9]\d\d positions", long)


def test_graphs_that_are_wrong_over_many_positions_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "recorder_on", lambda device: RecordedGraphs())
    replay = LayerGraph.replay

    def wrong(graph: LayerGraph, cache: Any) -> Any:
        found = replay(graph, cache)
        return found * 1.5 if cache.get_seq_length() > 100 else found

    monkeypatch.setattr(LayerGraph, "replay", wrong)
    with pytest.raises(ModelRefused, match=r"failed at 'steps by CUDA graphs after .* load it without --cuda-graphs"):
        build_desk(build("llama"), cuda_graphs=True)


def test_every_layer_of_every_step_is_replayed_and_counted(pair: tuple[Desk, Desk]) -> None:
    desk, plain = pair
    before = replayed(desk)
    assert outcome(desk) == outcome(plain)
    assert replayed(desk) - before == PASSES * LAYERS
    assert desk.engine.state_publisher.reading.statistics.layers_replayed == replayed(desk)


def test_a_session_of_eager_attention_runs_without_and_leaves_the_count(pair: tuple[Desk, Desk]) -> None:
    desk, _ = pair
    outcome(desk)
    before = replayed(desk)
    desk.open("maps")
    desk.ask(ask.SetAttention(session="maps", attention="eager"))
    desk.run(tokens(9), 4, "maps")
    assert before
    assert desk.engine.state_publisher.reading.statistics.layers_replayed == replayed(desk) == before


def test_a_layer_with_a_breakpoint_inside_runs_without_and_the_others_are_replayed(pair: tuple[Desk, Desk]) -> None:
    def stopped(desk: Desk) -> tuple[Any, ...]:
        desk.open()
        desk.stop_at("mlp_out.3", when="step == 2")
        found = desk.run(tokens(9), NEW)
        values = desk.value().tolist()
        return found.site, values, desk.outcome(desk.resume()).tokens, desk.logits().tolist()

    before = replayed(pair[0])
    alike(pair, stopped)
    assert replayed(pair[0]) - before < PASSES * (LAYERS - 1) + LAYERS


def test_a_stop_between_layers_is_edited_resumed_and_gone_back_to(pair: tuple[Desk, Desk]) -> None:
    def stopped(desk: Desk) -> tuple[Any, ...]:
        desk.open()
        desk.stop_at("resid_post.4", when="step == 2")
        desk.run(tokens(9), NEW)
        first = desk.value()
        desk.edit()
        edited = desk.outcome(desk.resume())
        desk.back()
        assert torch.equal(desk.value(), first), "later steps wrote into the frame of a stop"
        return first.tolist(), edited.tokens, desk.outcome(desk.resume()).tokens, desk.logits().tolist()

    alike(pair, stopped)


def test_a_stop_steps_through_layers_and_inside_them(pair: tuple[Desk, Desk]) -> None:
    def stepped(desk: Desk) -> list[Any]:
        desk.open()
        desk.stop_at("resid_pre.2", when="step == 3")
        desk.run(tokens(9), NEW)
        seen = []
        for by in ("layer", "point", "point", "layer", "token"):
            seen.append((desk.step(by=by).site, desk.value().tolist()))
        return [*seen, desk.resume().tokens, desk.logits().tolist()]

    alike(pair, stepped)


@pytest.mark.parametrize("site", ["resid_mid.3", "z.2", "resid_post.5"])
def test_a_rule_changes_every_step(pair: tuple[Desk, Desk], site: str) -> None:
    def steered(desk: Desk) -> tuple[Any, ...]:
        desk.open()
        desk.steer(site)
        found = desk.outcome(desk.run(tokens(9), NEW))
        return found.tokens, found.logits.tolist()

    alike(pair, steered)


def test_a_watch_keeps_what_each_step_had(pair: tuple[Desk, Desk]) -> None:
    def watched(desk: Desk) -> list[Any]:
        desk.open()
        for site in ("resid_post.3", "attn_out.3"):
            desk.ask(ask.Watch(session="a", site=site))
        desk.run(tokens(9), NEW)
        found = [desk.ask(ask.ReadWatch(session="a", site=site)) for site in ("resid_post.3", "attn_out.3")]
        return [(one.positions, [value.data for value in one.values]) for one in found]

    alike(pair, watched)


def test_graphs_belong_to_no_session(pair: tuple[Desk, Desk]) -> None:
    def by_turns(desk: Desk) -> list[Any]:
        desk.open("a")
        desk.stop_at("resid_post.4", when="step == 2", name="a")
        desk.run(tokens(9), NEW, "a")
        desk.fork("b")
        desk.edit(name="b")
        desk.open("c")
        other = desk.outcome(desk.run(tokens(40, seed=5), NEW, "c"), "c")
        desk.swap_out("a")
        edited = desk.outcome(desk.resume("b"), "b")
        kept = desk.outcome(desk.resume("a"), "a")
        return [(one.tokens, one.logits.tolist()) for one in (other, edited, kept)]

    alike(pair, by_turns)


def test_weights_that_lie_elsewhere_are_recorded_anew(
    pair: tuple[Desk, Desk], recorder: RecordedGraphs | CountedGraphs
) -> None:
    desk, plain = pair
    outcome(desk)
    before = recorder.begun
    with torch.no_grad():
        for parameter in desk.engine.anatomy.layers[3].parameters():
            old, parameter.data = parameter.data, parameter.data.clone()
            old.fill_(float("nan"))
    assert outcome(desk) == outcome(plain)
    assert recorder.begun == before + 2


def without_memory(layers: Callable[[int], bool]) -> Callable[..., Any]:
    """Return `record` for a device that has no memory for the graphs of these layers (counted by records)."""
    asked = iter(range(1 << 30))

    def recorded(*args: Any) -> Any:
        if layers(next(asked)):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")
        return record(*args)

    return recorded


def test_a_layer_whose_graphs_find_no_memory_is_told_and_recorded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama")
    plain = outcome(desk, new=3 * NEW)
    monkeypatch.setattr(decode_graphs, "PASSES_BETWEEN", 4)
    monkeypatch.setattr(decode_graphs, "record", without_memory(lambda number: number in (2, 5, 8)))
    with by_graphs(desk) as graphs:
        assert outcome(desk, new=2) == desk.outcome(desk.run(tokens(9), 2))
        assert (sorted(graphs.postponed), graphs.recorded, graphs.plain) == ([2, 5], LAYERS - 2, {})
        assert any("layers 2, 5 (no memory for its graphs so far" in note for note in notes_on(graphs, "tiny"))
        assert outcome(desk, new=3 * NEW) == plain
        assert (graphs.postponed, graphs.recorded) == ({}, LAYERS)
        assert desk.engine.state_publisher.reading.statistics.graphs_postponed == 0


def test_the_statistics_count_layers_that_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama")
    monkeypatch.setattr(decode_graphs, "record", without_memory(lambda number: number == 1))
    with by_graphs(desk):
        outcome(desk)
        assert desk.engine.state_publisher.reading.statistics.graphs_postponed == 1


# --- where there are none -------------------------------------------------------------------------------------------


def test_a_model_of_which_no_layer_can_be_recorded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "recorder_on", lambda device: RecordedGraphs())
    with pytest.raises(
        ModelRefused, match=r"No layer of tiny can run by CUDA graphs: layers 0, .* \(it .*\)\. Load it"
    ):
        build_desk(build("mamba"), cuda_graphs=True)


def test_graphs_are_refused_without_a_gpu_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CUDA graphs need a GPU, and cpu is none: load it without --cuda-graphs"):
        open_engine(EngineConfig(model=str(tmp_path / "absent"), device="cpu", cuda_graphs=True))


def test_graphs_are_refused_for_weights_that_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "recorder_on", lambda device: RecordedGraphs())
    model = build("llama")
    size = sum(parameter.nbytes for parameter in model.parameters())
    with pytest.raises(ModelDoesNotFit, match="layers of tiny stream: load it without --cuda-graphs"):
        build_desk(model, cuda_graphs=True, device_memory=size * 3 // 4, page_positions=4)
