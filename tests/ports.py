"""Ports for servers and kernels that are started later."""

from __future__ import annotations

import os
import random
import socket

from jupyter_client.connect import LocalPortCache


def ports_of(worker: str) -> range:
    """Return the ports of a worker, `gw0` or `gw1`: below those that systems give to connections and to servers without
    a choice (Linux from 32,768 on, macOS from 49,152), and apart from the other worker's."""
    return range(10_240, 32_768)[int(worker.removeprefix("gw")) % 2 :: 2]


def free_port() -> int:
    """Return a port that is free, and that nothing else takes before the server does."""
    ports, chance = ports_of(os.environ.get("PYTEST_XDIST_WORKER", "gw0")), random.SystemRandom()
    for _ in ports:
        port = chance.choice(ports)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def port_of_a_kernel(cache: LocalPortCache, ip: str) -> int:
    """Stand for `LocalPortCache.find_available_port`, whose ports a kernel has a second later: meanwhile those of the
    other worker could take them."""
    while (port := free_port()) in cache.currently_used_ports:
        pass
    cache.currently_used_ports.add(port)
    return port
