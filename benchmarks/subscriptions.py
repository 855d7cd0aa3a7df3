"""The memory of a publisher's process for each subscribed topic: the names of sessions as they are, against the hashes
of them that Djinn subscribes to. Bytes of the process, before and after.
"""

from __future__ import annotations

import subprocess
import sys

import zmq

from benchmarks.measuring import Spread, take_turns
from benchmarks.results import Checks, Figure, Result
from benchmarks.setting import Setting
from djinn_jupyter.wire.codec import topic_of

ROUNDS, TOPICS, NAME_CHARACTERS = 3, 20_000, 1000
PUBLISHER = """
import sys, psutil, zmq
socket = zmq.Context.instance().socket(zmq.XPUB)
socket.set(zmq.RCVHWM, 0)
socket.bind(sys.argv[1])
print("bound", flush=True)
process = psutil.Process()
socket.recv()
before = process.memory_info().rss
for _ in range(int(sys.argv[2])):
    socket.recv()
print(process.memory_info().rss - before, flush=True)
"""


def run(setting: Setting) -> Result:
    checks, rounds = Checks(), setting.rounds(ROUNDS)
    topics = TOPICS // 10 if setting.quick else TOPICS
    names = [f"{number}/".ljust(NAME_CHARACTERS, "n") for number in range(topics)]  # zmq shares common beginnings
    sides = {"names": [name.encode() for name in names], "hashes": [topic_of(name) for name in names]}
    readings = take_turns(
        {side: lambda asked=asked: _bytes_a_topic(setting, asked, checks) for side, asked in sides.items()},
        rounds=rounds,
        warm_up=0,
    )
    figure = Figure(
        name=f"memory of a publisher for one of {topics:,} topics, names of {NAME_CHARACTERS:,} characters",
        unit="bytes",
        value=Spread.of(readings["hashes"]),
        sides={side: Spread.of(values) for side, values in readings.items()},
        sides_unit="bytes",
    )
    settings = {"rounds": rounds, "topics": topics, "characters of a name": NAME_CHARACTERS}
    return Result(benchmark="subscriptions", settings=settings, figures=(figure,), checks=checks.counts)


def _bytes_a_topic(setting: Setting, topics: list[bytes], checks: Checks) -> float:
    address = f"ipc://{setting.home}/publisher"
    command = [sys.executable, "-c", PUBLISHER, address, str(len(topics))]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher,
        zmq.Context() as context,
        context.socket(zmq.SUB) as socket,
    ):
        assert publisher.stdout is not None
        checks.same("publishers that listened", publisher.stdout.readline(), "bound\n")
        socket.set(zmq.SNDHWM, 0)
        socket.connect(address)
        socket.subscribe(b"before")
        for topic in topics:
            socket.subscribe(topic)
        return int(publisher.stdout.readline()) / len(topics)
