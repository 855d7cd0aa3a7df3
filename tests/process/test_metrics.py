"""The page of metrics: what it says is what the engine's statistics say, and nothing of the work."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from urllib.request import urlopen

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.process import metrics
from djinn_jupyter.engine.process.metrics import COUNTS, OF_THE_SERVICE, EngineCollector, MetricsPage
from djinn_jupyter.engine.process.service import ServiceStatistics
from djinn_jupyter.errors import UsageError
from djinn_jupyter.remote.engine.people import (
    MOST_PERSONS,
    OTHERS,
    OWN_USER,
    memory_samples,
    session_samples,
    time_samples,
)
from djinn_jupyter.settings import split_address
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import (
    EngineStatistics,
    PersonMemory,
    PrefetchStatistics,
    Residency,
    SessionState,
    WeightsStatistics,
)
from tests.engine.desk import Desk, desk_of, tokens
from tests.waiting import SECONDS

BOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
TABLE = BOARD.with_name("metrics.md")
SERVICE = ServiceStatistics(
    requests=1, replies=2, refused=3, dropped=4, unroutable=5, events=6, events_dropped=9, pending=7, clients=8
)
Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(address: str) -> Page:
    """Return the value of each name with its labels, read by Prometheus's own parser."""
    with urlopen(f"http://{address}/metrics", timeout=SECONDS) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def collector_of(engine: Any) -> EngineCollector:
    return EngineCollector(engine.description, lambda: engine.reading, lambda: SERVICE, lambda: engine.worked)


@contextmanager
def page_of(engine: Any) -> Iterator[MetricsPage]:
    page = MetricsPage("127.0.0.1:0", collector_of(engine))
    try:
        yield page
    finally:
        page.close()


@pytest.fixture(scope="module")
def desk() -> Desk:
    return desk_of("llama")


@pytest.fixture
def page(desk: Desk) -> Iterator[MetricsPage]:
    with page_of(desk.engine) as page:
        yield page
    desk.close_all()


def test_an_address_is_told_as_it_was_given(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def start(port: int, host: str, registry: object) -> tuple[Any, Any]:  # without IPv6, which a machine may lack
        asked.append(host)
        return SimpleNamespace(server_port=9464), None

    monkeypatch.setattr(metrics, "start_page", start)
    assert MetricsPage("[::1]:9464", collector_of(desk.engine)).address == "[::1]:9464"
    assert asked == ["::1"]


def sessions(found: Page) -> float:
    return sum(value for (name, _), value in found.items() if name == "djinn_sessions")


def test_each_visit_tells_what_is_published_then(desk: Desk, page: MetricsPage) -> None:
    before = read(page.address)
    desk.run(tokens(5), name=desk.open("paris"))
    after = read(page.address)
    assert sessions(after) == sessions(before) + 1
    passes = ("djinn_passes_total", ())
    assert after[passes] == desk.engine.reading.statistics.passes > before[passes]


def test_every_count_of_the_statistics_is_on_the_page(desk: Desk, page: MetricsPage) -> None:
    told, found = desk.engine.reading.statistics, read(page.address)
    for name in COUNTS:
        assert found[f"djinn_{name}_total", ()] == getattr(told, name)
    for name in OF_THE_SERVICE:
        assert found[f"djinn_messages_{name}_total", ()] == getattr(SERVICE, name)
    assert found["djinn_requests_pending", ()] == 7
    assert found["djinn_clients", ()] == 8
    for tier in told.tiers:
        assert found["djinn_tier_bytes_limit", (("tier", tier.tier),)] == tier.bytes_limit


def test_the_tables_name_fields_that_there_are() -> None:
    assert set(COUNTS) <= set(EngineStatistics.__struct_fields__)
    assert set(OF_THE_SERVICE) <= {field.name for field in dataclasses.fields(ServiceStatistics)}


def test_labels_are_words_of_the_wire_and_nothing_of_the_work(desk: Desk, page: MetricsPage) -> None:
    desk.run(tokens(5), name=desk.open("a secret of paris"))
    found = read(page.address)
    for name, labels in found:
        if name == "djinn_sessions":
            assert dict(labels)["state"] in get_args(SessionState)
            assert dict(labels)["residency"] in get_args(Residency)
    assert "paris" not in str(found)


def test_persons_have_sessions_and_memory_of_their_own(desk: Desk) -> None:
    desk.run(tokens(5), name=desk.open("a"))
    (own,) = desk.engine.reading.sessions
    sessions = tuple(
        replace(own, name=name, device_bytes=7, host_bytes=5, disk_bytes=3)
        for name in ("anna@a", "anna@b", "bert@a", "mine")
    )
    people = (
        PersonMemory(person=None, device_bytes=1, host_bytes=0, disk_bytes=0),
        PersonMemory(person="anna", device_bytes=20, host_bytes=2, disk_bytes=0),
    )
    assert dict(session_samples(sessions)) == {
        ("anna", own.state): 2,
        ("bert", own.state): 1,
        (OWN_USER, own.state): 1,
    }
    found = dict(memory_samples(people, sessions))
    assert found["anna", "device"] == 20
    assert found[OWN_USER, "device"] == 1
    alone = dict(memory_samples((), sessions[-1:]))
    assert alone == {(OWN_USER, "device"): 7, (OWN_USER, "host"): 5, (OWN_USER, "disk"): 3}
    desk.close_all()


def test_many_persons_make_no_more_series_than_a_bound() -> None:
    people = [
        PersonMemory(person=f"p{number:04}", device_bytes=number, host_bytes=0, disk_bytes=0)
        for number in range(3 * MOST_PERSONS)
    ]
    found = dict(memory_samples(people, ()))
    persons = {person for person, _ in found}
    assert len(persons) == MOST_PERSONS + 1
    assert found["p0149", "device"] == 149
    assert found[OTHERS, "device"] == sum(range(2 * MOST_PERSONS))


def test_the_time_of_the_engine_is_counted_for_the_person_whose_key_asked(desk: Desk, page: MetricsPage) -> None:
    anna = Holder(name="kernel-a", user="anna", person="anna")
    found, rose = [read(page.address)], []
    for name, holder in (("anna@work", anna), ("work", None)):
        before = dict(desk.engine.worked)
        desk.engine.ask(ask.Open(session=name), holder)
        desk.engine.ask(ask.Run(session=name, tokens=tuple(tokens(5)), max_new_tokens=4), holder)
        rose.append({one: after - before.get(one, 0.0) for one, after in desk.engine.worked.items()})
        found.append(read(page.address))
    assert rose[0]["anna"] > 0.0 < rose[1][None]
    assert rose[0].get(None, 0.0) == rose[1]["anna"] == 0.0
    series = "djinn_person_running_seconds_total"
    of_anna = [page.get((series, (("person", "anna"),)), 0.0) for page in found]
    own = [page.get((series, (("person", OWN_USER),)), 0.0) for page in found]
    assert of_anna[0] < of_anna[1] == of_anna[2]
    assert own[0] == own[1] < own[2]


def test_the_time_of_a_person_stays_in_one_series(desk: Desk) -> None:
    worked: dict[str | None, float] = {f"p{number:04}": 1.0 for number in range(MOST_PERSONS + 2)} | {None: 5.0}
    before = dict(time_samples(worked))
    worked[f"p{MOST_PERSONS:04}"] = 1000.0  # more than any other has
    after = dict(time_samples(worked))
    assert len(after) == MOST_PERSONS + 2
    assert after == before | {(OTHERS,): 1001.0}
    assert after[OWN_USER,] == 5.0


def test_the_board_of_grafana_asks_for_what_the_page_has(desk: Desk, page: MetricsPage) -> None:
    desk.run(tokens(5), name=desk.open("a"))
    has = {name for name, _ in read(page.address)}
    asked = [target["expr"] for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]]
    named = {name for expression in asked for name in re.findall(r"\bdjinn_\w+", expression)}
    assert len(named) > 10
    assert named <= has


def test_the_table_of_the_docs_has_the_metrics_of_the_page(desk: Desk) -> None:
    told = replace(
        desk.engine.reading.statistics,
        weights=WeightsStatistics(residency="streamed", bytes_total=2, bytes_on_device=1),
        prefetches=PrefetchStatistics(begun=4, hits=3, late=2, wasted=1, trust_in_focus=0.5),
    )
    collector = EngineCollector(
        desk.engine.description, lambda: SimpleNamespace(statistics=told, sessions=()), lambda: SERVICE, dict
    )
    endings = {"counter": "_total", "info": "_info"}
    families = {family.name + endings.get(family.type, "") for family in collector.collect()}
    rows = re.findall(r"^\| (`djinn_[^|]*)\|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"djinn_\w+", row)]
    assert len(named) == len(set(named))
    assert set(named) == families


def test_an_address_in_use_is_one_sentence(desk: Desk, page: MetricsPage) -> None:
    with pytest.raises(UsageError, match=r"cannot be served at .*give another address with --metrics"):
        MetricsPage(page.address, collector_of(desk.engine))


@pytest.mark.parametrize("address", ["", "9464", ":9464", "127.0.0.1", "127.0.0.1:x", "http://h:1", "h:65536", "h:-1"])
def test_what_is_no_address_is_one_sentence(address: str) -> None:
    with pytest.raises(UsageError, match="is no address; write a host and a port"):
        split_address(address)


def test_a_closed_page_frees_its_port(desk: Desk) -> None:
    with page_of(desk.engine) as page:
        pass
    with socket.create_server(split_address(page.address)):
        pass
