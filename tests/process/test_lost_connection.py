"""An unclosed connection, found by the collector: in a process of its own, because that may wait for ever."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, gc
from djinn_jupyter.link.transport import Connection
from tests.process.test_service import served

async def forgotten(house):
    connection = await Connection.open(house.entry, holder="kernel", user="ada")
    await connection.listen("paris", lambda event: None)

async def answered(house):
    connection = await Connection.open(house.entry, holder="kernel", user="ada")
    await connection.close()

with served() as house:
    for _ in range(5):
        asyncio.run(forgotten(house))
        gc.collect()
    asyncio.run(answered(house))
"""


def test_the_collector_does_not_wait_for_a_forgotten_connection_and_others_go_on() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
