"""The actor of one engine. Its child process is the same as that of `djinn serve`, and ends with it. Ray places the
actor, and starts it again on another machine when its own goes down."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

import ray
from ray.exceptions import RayError

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.launcher import start_child
from djinn_jupyter.link.starting import ChildEngine, StartCallbacks
from djinn_jupyter.remote.addresses import key_folder, of_engines_here
from djinn_jupyter.remote.cluster.machines import of_this_machine
from djinn_jupyter.settings import Identity
from djinn_jupyter.wire import registry
from djinn_jupyter.wire.keys import read_public, spell_public

log = logging.getLogger(__name__)

END_SECONDS: Final = 25.0  # it has sessions to store
ANSWER_SECONDS: Final = 5.0
FAILED: Final = 1  # the exit status after which Ray starts the actor again


class PlacedEngine:
    """The methods are called through Ray, several at once. `words` are the flags of the engine's command line."""

    def __init__(self, identity: Identity, words: list[str]) -> None:
        self._identity, self._words = identity, words
        self._notice: registry.Notice = registry.Progressed(line=f"starting the engine of {identity}")
        self._child: ChildEngine | None = None
        self._leaves = False
        self._keeper = threading.Thread(target=self._keep, name="djinn-keeper", daemon=True)
        self._keeper.start()

    def notice(self) -> bytes:
        """Return the progress of the start: the present step, the engine's entry, or the reason of its failure."""
        return registry.encode_notice(self._notice)

    def admit(self, public: str, person: str) -> str:
        """Admit a person on this machine; return the public key of its engines. Anyone who can call this can run
        programs as this account anyway."""
        key_folder().allow(read_public(public), person)
        return spell_public(of_engines_here().public)

    def process(self) -> tuple[str, int]:
        """Return the machine and the number of the actor's present process."""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def resources(self) -> dict[str, float]:
        """Return the resources that Ray reserves for it."""
        return dict(ray.get_runtime_context().get_assigned_resources())

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of the engine on its machine; Ray runs nothing else on a drained one."""
        return of_this_machine()

    def end(self) -> None:
        """End the engine in order, and the actor with it."""
        if self._child is not None:
            self._child.end(END_SECONDS)

    def leave(self) -> None:
        """End the engine in order, so that Ray starts it again on another machine, because this one is drained."""
        self._leaves, self._notice = (
            True,
            registry.Progressed(line=f"the engine of {self._identity} goes to another machine"),
        )
        self.end()

    def _keep(self) -> None:
        """Start the engine and stay with it. The actor ends with an engine that ended in order (also by itself after
        disuse), or whose sessions an engine outside this actor has taken over. After an engine that died Ray starts the
        actor again."""
        try:
            self._child = start_child(
                self._identity, self._all_words(), told=StartCallbacks(line=self._line, second=self._second)
            )
        except DjinnError as error:
            self._notice = registry.StartFailed(code=error.code, message=str(error))
            return
        self._notice = registry.Ready(entry=self._child.entry)
        status = self._child.wait()
        if self._leaves:
            os._exit(FAILED)
        if status == 0 or (status == registry.CLAIM_LOST_STATUS and self._is_the_one()):
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
        os._exit(FAILED)

    def _is_the_one(self) -> bool:
        """Return whether Ray takes this process for the actor, and has not started it again on another machine."""
        try:
            asked = ray.get_runtime_context().current_actor.process.remote()
            return bool(ray.get(asked, timeout=ANSWER_SECONDS) == self.process())
        except RayError:
            return False

    def _all_words(self) -> list[str]:
        """Return the command line with an address of this machine that Ray's other machines reach."""
        return [*self._words, f"--listen=tcp://{ray.util.get_node_ip_address()}:*"]

    def _line(self, line: str) -> None:
        self._notice = registry.Progressed(line=line)

    def _second(self, line: str) -> None:
        self._notice = registry.StillStarting(line=line)
