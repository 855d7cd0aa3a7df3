"""The logits of all positions of a prompt, in a pass of its own, and the loss of its tokens."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from djinn_jupyter.engine.interventions.steering import Rule
from djinn_jupyter.engine.session import queries
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked

LOSS_ROWS: Final = 256  # of logits that are fp32 at a time


def logits_of(
    runtime: Runtime, session: Session, tokens: tuple[int, ...], rules: tuple[Rule, ...]
) -> Generator[Blocked | None, None, Tensor]:
    """Return the logits [T, V] of all positions, in the model's dtype, where `rules` hold."""
    outcome = yield from queries.run_line(runtime, session, tokens, rules=rules, all_logits=True)
    return outcome.logits_1TV[0]


@torch.inference_mode()
def loss_of(logits_TV: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Return the negative log-likelihood [T - 1], fp32 on the host, of each token but the first."""
    targets = torch.tensor(tokens[1:], dtype=torch.long, device=logits_TV.device)  # of one token: empty
    pieces = zip(logits_TV[:-1].split(LOSS_ROWS), targets.split(LOSS_ROWS), strict=True)
    return torch.cat([cross_entropy(rows.float(), wanted, reduction="none") for rows, wanted in pieces]).to("cpu")
