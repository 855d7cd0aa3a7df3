"""`tests.engine.crowd` for a live engine in place of one in process: clients on connections of their own, sessions in
the state that a test wants, and a bystander whose bits are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import zmq
from torch import Tensor

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import SessionDescription
from djinn_jupyter.wire.replies import Failed, Finished, Logits
from tests.engine.cases import CLIENTS, SESSIONS, Case, State, Step
from tests.engine.crowd import BYSTANDER, PROMPT, is_refusal
from tests.process.peers import PATIENCE_MILLISECONDS, Peer

STEPS: Final = 10  # then it runs its prompt again
HURRY_MILLISECONDS: Final = 20  # how long a run that others wait for may go on


class LiveCrowd:
    """`stage` brings sessions into their states; `expected` are the bystander's steps when it is alone."""

    def __init__(self, engine: RemoteEngine) -> None:
        self.entry = engine.entry
        self._context: zmq.Context[Any] = zmq.Context()
        self.stage, self.bystander = self._peer("tester"), self._peer(BYSTANDER)
        self.clients = [self._peer(f"kernel {number}") for number in range(CLIENTS)]
        self._asked: list[tuple[Peer, int, Case]] = []
        self.bystander.ask(ask.Open(session=BYSTANDER))
        self._step = 0
        self.expected = [self._ended(self._begun()) for _ in range(STEPS)]

    def _peer(self, holder: str) -> Peer:
        return Peer(self.entry, self._context, holder, "tester")

    def close(self) -> None:
        for peer in (self.stage, self.bystander, *self.clients):
            peer.close()
        self._context.term()

    # --- the bystander -----------------------------------------------------------------------------------------------

    def goes_on(self) -> None:
        """Fail unless the bystander's next token is the same as ever, and made of the same bits."""
        self._compare(self._begun())

    def _compare(self, begun: tuple[int, int]) -> None:
        tokens, logits = self._ended(begun)
        expected = self.expected[begun[0]]
        assert tokens == expected[0]
        assert torch.equal(logits, expected[1])

    def _begun(self) -> tuple[int, int]:
        """Begin the bystander's next step; return its place among the steps and the number of its request."""
        step, begins = self._step, self._step == 0
        self._step = (step + 1) % STEPS
        prompt = PROMPT if begins else ()
        run = ask.Run(session=BYSTANDER, tokens=prompt, extend=not begins, max_new_tokens=1, ignore_eos=True)
        return step, self.bystander.send(run)

    def _ended(self, begun: tuple[int, int]) -> tuple[tuple[int, ...], Tensor]:
        finished = self.bystander.reply_to(begun[1])
        assert isinstance(finished, Finished), finished
        logits = self.bystander.ask(ask.ReadLogits(session=BYSTANDER))
        assert isinstance(logits, Logits), logits
        self.bystander.replies.clear()
        return finished.tokens, to_tensor(logits.logits)

    # --- the others --------------------------------------------------------------------------------------------------

    def bring(self, name: str, state: State) -> None:
        """Have a session of that name in that state; one that is to be closed meanwhile stands still."""
        found = self._described().get(name)
        if _stands(found) == {"closed": "stopped", "cut short": "empty"}.get(state, state):
            return
        if found is not None:
            self.stage.ask(ask.Close(session=name, force=True))
        if state == "missing":
            return
        self._does(ask.Open(session=name))
        if state in ("empty", "cut short"):
            return
        if state == "running":
            return self._set_going(name)
        self._does(ask.SetBreakpoint(session=name, site="3", when="step == 0"))
        self._does(ask.Run(session=name, tokens=PROMPT, max_new_tokens=4, ignore_eos=True))
        if state == "away":
            self._does(ask.SwapOut(session=name))

    def _set_going(self, name: str) -> None:
        """Start a run, again where it was over before it was seen."""
        run = ask.Run(session=name, tokens=PROMPT, max_new_tokens=400, ignore_eos=True)
        number = self.stage.send(run)
        while _stands(self._described()[name]) != "running":
            if self.stage.replies[number]:
                number = self.stage.send(run)

    def alone(self) -> None:
        """Fail unless only the bystander is left, and nothing has gone wrong inside."""
        self.close_others()
        statistics = self.stage.ask(ask.ReadStatistics()).statistics
        assert (statistics.faults, statistics.last_fault) == (0, None)
        assert running_engines() == (self.entry,)
        assert "the engine does not know" not in Path(self.entry.log).read_text()

    def close_others(self) -> None:
        for name in self._described():
            if name != BYSTANDER:
                self.stage.ask(ask.Close(session=name, force=True))
        self.stage.replies.clear()

    def ask(self, case: Case, state: State) -> Any:
        """Return the one reply to a request."""
        self._post(self.stage, case)
        closes = state in ("closed", "cut short")
        closing = self.stage.send(ask.Close(session=case.name, force=True)) if closes else None
        [reply] = self._answered()
        assert closing is None or len(self._replies(self.stage, closing)) == 1
        if case.kind in (ask.Hello, ask.Goodbye):
            self.stage.greet()
        return reply

    def interleave(self, steps: list[Step]) -> None:
        """Send the requests of all steps while the bystander takes a step, and before it takes the next."""
        for name, state in SESSIONS.items():
            self.bring(name, state)
        for peer in self.clients:
            peer.greet()
        begun = self._begun()
        for client, case, pauses in steps:
            if not case.ends_the_engine:
                self._post(self.clients[client], case)
            for _ in range(pauses):
                self.stage.settle()
        asked = [case for *_, case in self._asked]
        for case, reply in zip(asked, self._answered(), strict=True):
            assert not isinstance(reply, Failed) or is_refusal(reply), (case, reply)
        self._compare(begun)

    def _post(self, peer: Peer, case: Case) -> None:
        number = peer.next_number()
        peer.send_frames(case.frames(number))
        self._asked.append((peer, number, case))

    def _answered(self) -> list[Any]:
        """The replies to all that was posted, one to each."""
        replies = [self._replies(peer, number) for peer, number, _ in self._asked]
        assert [len(those) for those in replies] == [1] * len(replies), self._asked
        self._asked.clear()
        return [reply for [reply] in replies]

    def _replies(self, peer: Peer, number: int) -> list[Any]:
        """Return the replies; runs that would take long are paused."""
        waits = 0
        while not peer.replies[number]:
            if not peer.receive(HURRY_MILLISECONDS):
                self._hurry()
                waits += HURRY_MILLISECONDS
            assert waits < PATIENCE_MILLISECONDS, "a request is not answered"
        return peer.replies[number]

    def _hurry(self) -> None:
        """Pause what runs. The bystander is asked, for the stage may just have said Goodbye."""
        for name, session in self._described(self.bystander).items():
            if name != BYSTANDER and session.state == "running":
                self.stage.send(ask.Pause(session=name))

    def _described(self, asked: Peer | None = None) -> dict[str, SessionDescription]:
        return {session.name: session for session in (asked or self.stage).ask(ask.ListSessions()).sessions}

    def _does(self, request: ask.Request) -> None:
        reply = self.stage.ask(request)
        assert not isinstance(reply, Failed), (request, reply)


def _stands(session: SessionDescription | None) -> State | None:
    """Return None for a state that no case is about."""
    if session is None:
        return "missing"
    match session.state, session.residency:
        case "running", _:
            return "running"
        case "paused", "host":
            return "away"
        case "paused", "resident":
            return "stopped"
        case "idle", _ if not session.tokens and session.doing == "idle":
            return "empty"
    return None
