"""The rotation when layers stream: running sessions meet at every layer, so that it is fetched once for all.

The layers are fetched in a cycle. A run gets its turn when the cycle is at its next layer, also in the midst of a pass;
a run that begins waits until the cycle comes to the first layer, and is in step from there on.
"""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.engine.scheduling.jobs import Job


class Lockstep:
    """`at` is the layer of the last run that was chosen."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self.at = 0

    def choose(self, jobs: Sequence[Job]) -> Job:
        """Return a look, which is short, else the run whose next layer comes first in the cycle; of several the one
        that waited longest. `jobs` are ready, in rotation, and at least one."""
        look = next((job for job in jobs if job.kind == "look"), None)
        if look is not None:
            return look
        chosen = min(jobs, key=lambda job: (self._next_layer(job) - self.at) % self._layers)
        self.at = self._next_layer(chosen)
        return chosen

    def steps_aside(self, job: Job, running: int) -> bool:
        """True where this job yields after every layer: a run among several, whose frame holds its place."""
        return job.kind == "run" and running > 1 and job.session.frame is not None

    def _next_layer(self, job: Job) -> int:
        frame = job.session.frame
        return 0 if frame is None else frame.boundary % self._layers
