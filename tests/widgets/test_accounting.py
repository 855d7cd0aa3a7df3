"""The views of an engine: its start, its status, its memory."""

from __future__ import annotations

import dataclasses

import msgspec

from djinn_jupyter.api.memory_trace import reading_of
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.nouns import BudgetStatistics, PersonMemory, ProcessMemory
from tests.widgets import cards, samples

CARDS = cards.all_cards()


def test_a_model_that_streams_says_so_when_it_was_loaded_and_in_its_status() -> None:
    loaded = views.loaded_view(samples.model(), samples.session(), samples.streamed())
    streams = "streamed: 8.00 MiB of 26.7 MiB on the device; 10 layers stream, 10.0 MiB a pass through 2 slots"
    costs = (
        "expected: at least 9.8 ms a token at the measured 1.07 GB/s; with --device-memory 32MiB nothing would stream"
    )
    assert loaded.plain.splitlines()[1:3] == [streams, costs]
    assert all(line.partition(": ")[2] in loaded.html for line in (streams, costs))
    unmeasured = views.loaded_view(samples.model(), samples.session(), samples.streamed(link_bytes_per_second=None))
    assert "expected" not in unmeasured.plain
    assert "streamed" not in views.loaded_view(samples.model(), samples.session(), samples.weights()).plain
    status = views.status_view(samples.model(), samples.statistics(weights=samples.streamed()), None).plain
    rows = dict(line.split(maxsplit=1) for line in status.splitlines() if line.startswith(("ring", "experts")))
    assert rows["ring"] == "slot 0: layer 7, filling 41, computing; slot 1: empty"
    assert rows["experts"].startswith("40 % of the moved bytes were used")
    assert "410 at 8.00 GB/s; passes waited for them 25 % of their time (500 ms)" in status
    assert "3.00 MiB of what streams are in host memory" in status
    dense = samples.streamed(used_fraction=None, bytes_held_on_host=0, pass_seconds=0.0)
    quiet = views.status_view(samples.model(), samples.statistics(weights=dense), None).plain
    assert all(word not in quiet for word in ("experts", "host copy", "waited"))
    assert "ring" not in views.status_view(samples.model(), samples.statistics(), None).plain


def test_a_load_names_no_device_where_outputs_are_compared_and_what_is_not_served() -> None:
    model = samples.model()
    there = views.loaded_view(model, samples.session())
    left_out = views.loaded_view(model, samples.session(), names_device=False)
    for shown, compared in ((there.plain, left_out.plain), (there.html, left_out.html)):
        assert shown.replace(f" on {model.device}", "") == compared != shown
    note = "The language model alone is served; left out: vision_model (34 weights)."
    model = msgspec.structs.replace(samples.model(), notes=(note,))
    for view in (views.loaded_view(model, samples.session()), views.status_view(model, samples.statistics(), None)):
        assert note in view.plain
        assert note in view.html
    plan = views.progress_view("loading", ("11 layers stream", "a token takes at least 142.7 ms"))
    assert plan.plain.splitlines() == ["11 layers stream", "a token takes at least 142.7 ms", "loading"]
    assert all(line in plan.html for line in plan.plain.splitlines())


def test_the_status_says_what_came_back_and_what_went_wrong() -> None:
    back = samples.statistics(recovered_exact=2, recovered_recomputed=1)
    assert "2 as they were, 1 to be computed again" in views.status_view(samples.model(), back, None).plain
    assert "came back" not in views.status_view(samples.model(), samples.statistics(), None).plain
    said = "The journal does not have the latest of session 'a': No space left on device."
    for trouble in (said, None):
        status = views.status_view(samples.model(), samples.statistics(journal_trouble=trouble), None)
        assert (said in status.plain) == (trouble is not None)
        assert ("No space left on device" in status.html) == (trouble is not None)
    said = "3 lines of the log could not be written"
    for trouble in (said, None):
        status = views.status_view(samples.model(), samples.statistics(log_trouble=trouble), None)
        assert (said in status.plain) == (trouble is not None)
    last = "while it measured memory: OSError: Too many open files"
    told = views.status_view(samples.model(), samples.statistics(faults=2, last_fault=last), None)
    assert f"2 errors that belonged to no request, the last {last}; it went on" in " ".join(told.plain.split())
    assert "faults" not in views.status_view(samples.model(), samples.statistics(), None).plain


def test_what_of_the_process_is_not_accounted_for_stands_beside_the_rest() -> None:
    """The status and the memory of `%djinn_vram` show it from one engine's statistics; both leave it out where it was
    not measured."""
    measured = ProcessMemory(
        anonymous_bytes=900 << 20,
        mapped_bytes=300 << 20,
        accounted_bytes=500 << 20,
        runtime_bytes=280 << 20,
        beyond_bytes=120 << 20,
        device_beyond_bytes=None,
    )
    statistics = samples.statistics(process_bytes=1200 << 20, process=measured)
    said = " ".join(views.status_view(samples.model(), statistics, None).plain.split())
    parts = "300 MiB parts of files, 500 MiB accounted for, 280 MiB Python and its libraries, 120 MiB beyond"
    assert f"process 1.17 GiB: {parts}" in said
    memory = views.memory_view("demo", [reading_of(0.0, statistics, ())], ())
    assert "of it, not accounted for 120 MiB" in " ".join(memory.plain.split())
    assert "of it, not accounted for" in memory.html
    unmeasured = views.memory_view("demo", [reading_of(0.0, samples.statistics(process=None), ())], ())
    assert "beyond" not in unmeasured.plain + unmeasured.html


def test_the_budget_of_several_devices_is_what_all_of_them_hold_together() -> None:
    one = samples.statistics()
    both = BudgetStatistics(bytes_limit=2 * one.slabs[0].bytes_limit, bytes_taken=0, bytes_overdrawn=0, holdings=())
    told = msgspec.structs.replace(one, slabs=2 * one.slabs, budget=both)
    found, before = (reading_of(0.0, statistics, ()).budget for statistics in (told, one))
    assert found - before == one.slabs[0].bytes_limit


def test_the_memory_of_a_model_that_streams_shows_the_ring() -> None:
    ring = samples.streamed().ring
    readings = [dataclasses.replace(reading, ring=ring) for reading in samples.readings(3)]
    for shown in (views.memory_view("demo", readings[:1], ()), views.memory_view("demo", readings, ())):
        lines = shown.plain.splitlines()
        assert next(line for line in lines if line.startswith("ring")).split()[1:3] == ["2.00", "MiB"]
        assert [line.split() for line in lines[-2:]] == [
            ["0", "layer", "7", "41", "1.00", "MiB"],
            ["1", "empty", "0", "1.00", "MiB"],
        ]
        assert "weights that stay" in shown.html
    assert readings[0].accounted == samples.readings(1)[0].accounted + 2 * 2**20
    assert "ring" not in views.memory_view("demo", samples.readings(3), ()).plain


def test_where_persons_share_an_engine_the_memory_says_whose_it_is() -> None:
    people = (
        PersonMemory(person=None, device_bytes=0, host_bytes=0, disk_bytes=0),
        PersonMemory(person="anna", device_bytes=3 << 20, host_bytes=2 << 20, disk_bytes=1 << 20),
    )
    reading = reading_of(0.0, samples.statistics(people=people), ())
    for shown in (views.memory_view("demo", [reading], ()), views.memory_view("demo", [reading, reading], ())):
        assert [" ".join(line.split()) for line in shown.plain.splitlines()[-2:]] == [
            "the engine's user 0 B 0 B 0 B",
            "anna 3.00 MiB 2.00 MiB 1.00 MiB",
        ]
        assert "anna" in shown.html
    alone = views.memory_view("demo", [reading_of(0.0, samples.statistics(), ())], ())
    assert "person" not in alone.plain + alone.html


def test_what_was_held_and_kept_is_listed_also_of_sessions_that_left() -> None:
    lines = CARDS["memory"].plain.splitlines()
    assert next(line for line in lines if line.startswith("session-0")).split() == [
        "session-0",
        "0",
        "B",
        "3.00",
        "MiB",
    ]
    assert any(line.startswith("1 other session ") for line in lines)
    for text in (CARDS["many checkpoints"].plain, CARDS["many checkpoints"].html):
        assert "and 1,200 older ones, which can be restored by their names" in text
