"""A session in the state that a test wants, a client that sends it any request, and a bystander beside them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed
from tests.engine.cases import State
from tests.engine.desk import Desk, tokens

PROMPT: Final = tokens(10)
STEPS: Final = 200
BYSTANDER: Final = "bystander"
MOST_TICKS: Final = 12  # before a session is closed whose request is worked on


@dataclass
class Crowd:
    """`expected` are the bystander's logits after each of its steps when it is alone."""

    desk: Desk
    expected: list[Tensor] = field(default_factory=list)
    step: int = 0

    @classmethod
    def around(cls, desk: Desk) -> Crowd:
        crowd = cls(desk)
        desk.open(BYSTANDER)
        for _ in range(STEPS):
            crowd._run_on()
            crowd.expected.append(crowd._logits().clone())
        return crowd

    # --- the bystander -----------------------------------------------------------------------------------------------

    def goes_on(self) -> None:
        """Fail unless the bystander's next token is made of the same bits as ever."""
        step = self.step
        self._run_on()
        assert torch.equal(self._logits(), self.expected[step])

    def _run_on(self) -> None:
        begins = self.step == 0
        self.desk.run(PROMPT if begins else (), 1, BYSTANDER, extend=not begins)
        self.step = (self.step + 1) % STEPS

    def _logits(self) -> Tensor:
        return self.desk.session(BYSTANDER).logits_1V

    # --- the others --------------------------------------------------------------------------------------------------

    def bring(self, name: str, state: State) -> None:
        """Have a session of that name in that state; one that is to be closed meanwhile stands still, or is empty."""
        if self._is(name, state):
            return
        self.leave(name)
        if state == "missing":
            return
        self.desk.open(name)
        if state in ("empty", "cut short"):
            return
        if state == "running":
            self.desk.post(ask.Run(session=name, tokens=PROMPT, max_new_tokens=400, ignore_eos=True), [])
            self.desk.engine.tick()
            return
        self.desk.stop_at(3, "step == 0", name)
        self.desk.run(PROMPT, 4, name)
        if state == "away":
            self.desk.swap_out(name)

    def _is(self, name: str, state: State) -> bool:
        session = self.desk.engine.sessions.get(name)
        if session is None:
            return state == "missing"
        here = session.residence.state
        if session in self.desk.engine.open_requests or (session.work is not None) != (state == "running"):
            return False
        match state:
            case "running":
                return session.state == "running"
            case "away":
                return here == "host" and session.state == "paused"
            case "stopped" | "closed":
                return here == "resident" and session.state == "paused"
            case "empty" | "cut short":
                return session.generation is None
        return False

    def leave(self, *names: str) -> None:
        for name in names:
            if name in self.desk.engine.sessions:
                self.desk.close(name)

    def alone(self) -> None:
        """Fail unless only the bystander is left."""
        self.leave(*[name for name in self.desk.engine.sessions if name != BYSTANDER])

    def ask(self, request: ask.Request, name: str, state: State) -> Any:
        """Return the one reply to a request."""
        replies: list[Any] = []
        closing: list[Any] = []
        self.desk.post(request, replies)
        for _ in range(random.Random(repr(request)).randrange(1, MOST_TICKS) if state == "cut short" else 0):
            self.desk.engine.tick()
        closes = state in ("closed", "cut short")
        if closes:
            self.desk.post(ask.Close(session=name, force=True), closing)
        deadline = time.monotonic() + 60.0
        while not (replies and (closing or not closes)) and time.monotonic() < deadline:
            if not self.desk.engine.tick():
                self.desk.engine.mailbox.wait(0.002)  # workers answer without a request
        assert len(replies) == 1, (request, state)
        return replies[0]


def is_refusal(reply: object) -> bool:
    """Return whether it is a failure that the engine meant, in a sentence that can be shown to a person."""
    if not isinstance(reply, Failed) or "does not know (" in reply.message:
        return False
    return reply.message.endswith((".", "?")) and "\n" not in reply.message
