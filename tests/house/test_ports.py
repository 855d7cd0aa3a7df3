"""Ports that tests choose for later: two workers at once choose apart, below what systems give out."""

from __future__ import annotations

from jupyter_client.connect import LocalPortCache

from tests.ports import free_port, port_of_a_kernel, ports_of


def test_two_workers_choose_apart() -> None:
    assert set(ports_of("gw0")).isdisjoint(ports_of("gw1"))
    assert max(*ports_of("gw0"), *ports_of("gw1")) < 32_768
    assert free_port() in {*ports_of("gw0"), *ports_of("gw1")}


def test_a_kernel_has_no_port_twice() -> None:
    cache = LocalPortCache()
    ports = [port_of_a_kernel(cache, "127.0.0.1") for _ in range(200)]
    assert cache.currently_used_ports == set(ports)
    assert len(cache.currently_used_ports) == 200
