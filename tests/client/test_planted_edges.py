"""Circuits planted by hand in toy models are what every method finds: EAP, EAP-IG and edges patched exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.methods.circuits.api.edges import Edges
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.sweeps import test_planted_circuit as induction
from tests.threads import one_thread

TOKENS, HEADS = 12, 8  # one-hot; as wide as a head
WIDTH: Final = HEADS * TOKENS
NOISE, GAIN, STEADY = 1e-4, 14.0, 20.0
TOKEN, A, B, C, D, UNREAD, CONSTANT = (slice(n * TOKENS, (n + 1) * TOKENS) for n in range(7))  # parts of the residual
RELAYED: Final = (
    ("embed", "v.0[0]"), ("z.0[0]", "mlp_in.0"), ("mlp_out.0", "v.1[1]"), ("z.1[1]", "logits"),
    ("embed", "v.0[3]"), ("z.0[3]", "v.1[2]"), ("z.1[2]", "mlp_in.1"), ("mlp_out.1", "logits"),
)  # fmt: skip
INDUCED: Final = (("embed", "v.0[1]"), ("z.0[1]", "k.1[2]"), ("z.1[2]", "logits"))
METHODS: Final = ({}, {"steps": 8}, {"method": "exact"})


def relays() -> Any:
    """A GPT-2 of two layers whose heads attend to all alike and whose parts of the residual are read by one block each:
    two relays lead from the tokens to the logits, each through two heads and an MLP. Head 0.5 writes what none reads,
    and head 1.6 reads what none has written by then. A part that is constant and large keeps norms
    from tying all to all."""
    config = GPT2Config(vocab_size=TOKENS, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_inner=TOKENS)
    torch.manual_seed(5)
    model: Any = GPT2LMHeadModel(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(NOISE)
    core = model.transformer
    core.wte.weight[:, TOKEN] += torch.eye(TOKENS)
    core.wpe.weight[:, CONSTANT] += STEADY * torch.tensor([1.0, -1.0] * (TOKENS // 2))
    for norm in (core.ln_f, *(norm for layer in core.h for norm in (layer.ln_1, layer.ln_2))):
        norm.weight.fill_(1.0)
    for layer, head, reads, writes in (
        (0, 0, TOKEN, A), (0, 3, TOKEN, C), (0, 5, TOKEN, UNREAD), (1, 1, B, TOKEN), (1, 2, C, D), (1, 6, D, TOKEN),
    ):  # fmt: skip
        attention, own = core.h[layer].attn, slice(head * TOKENS, (head + 1) * TOKENS)
        attention.c_attn.weight[reads, 2 * WIDTH + own.start : 2 * WIDTH + own.stop] += GAIN * torch.eye(TOKENS)
        attention.c_proj.weight[own, writes] += torch.eye(TOKENS)
    for layer, reads, writes in ((0, A, B), (1, D, TOKEN)):
        core.h[layer].mlp.c_fc.weight[reads] += GAIN * torch.eye(TOKENS)
        core.h[layer].mlp.c_proj.weight[:, writes] += torch.eye(TOKENS)
    return model


@pytest.fixture(scope="module")
def relayed() -> Iterator[RemoteEngine]:
    with one_thread(), reached(build_desk(relays())) as [engine]:
        yield engine


@pytest.fixture(scope="module")
def induced() -> Iterator[RemoteEngine]:
    with one_thread(), reached(build_desk(induction._planted())) as [engine]:
        yield engine


RELAY: Final = {"clean": [1, 2, 3, 4], "corrupted": [1, 7, 3, 4], "metric": "logit(2) - logit(7)"}
INDUCTION: Final = {
    "clean": list(induction.LINE), "corrupted": list(induction.TWIN), "metric": f"logit({induction.SECOND}) - logit(0)",
}  # fmt: skip


@pytest.mark.parametrize("way", METHODS, ids=("eap", "eap-ig", "exact"))
def test_two_relays_are_found_by_each_method(relayed: RemoteEngine, way: dict[str, Any]) -> None:
    require_found(relayed, dj.edges(relayed, **RELAY, **way), RELAYED)


@pytest.mark.parametrize("way", METHODS, ids=("eap", "eap-ig", "exact"))
def test_an_induction_circuit_is_found_by_each_method(induced: RemoteEngine, way: dict[str, Any]) -> None:
    require_found(induced, dj.edges(induced, **INDUCTION, **way), INDUCED)


def require_found(engine: RemoteEngine, found: Edges, known: tuple[tuple[str, str], ...]) -> None:
    """Assert that the known edges have the largest scores, and do the task by themselves."""
    assert {(writer, reader) for writer, reader, _ in found.top(len(known))} == set(known)
    assert dj.auroc(found, known) == 1.0
    assert dj.circuit(engine, found, len(known)).faithfulness == pytest.approx(1.0, abs=0.05)
    assert dj.circuit(engine, found, faithfulness=0.95).edges == list(dj.circuit(engine, found, len(known)).edges)


def test_without_one_of_its_edges_a_relay_is_broken(relayed: RemoteEngine) -> None:
    found = dj.edges(relayed, **RELAY)
    for edge in RELAYED:
        rest = [one for one in RELAYED if one != edge]
        assert dj.circuit(relayed, found, rest).faithfulness < 0.85


def test_the_areas_tell_the_circuits_order_from_a_wrong_one(relayed: RemoteEngine) -> None:
    sizes = (0.0, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
    found = dj.edges(relayed, **RELAY)
    backwards = Edges([reversed_scores(one) for one in found.replies])
    good, bad = (dj.circuit_curve(relayed, one, sizes) for one in (found, backwards))
    assert good.cpr > 0.95
    assert good.cmd < 0.05
    assert bad.cpr < 0.6
    assert bad.cmd > 0.4


def reversed_scores(reply: Any) -> Any:
    """Return scores whose order is the other way round."""
    import msgspec
    import numpy as np

    from djinn_jupyter.api.arrays import from_numpy, to_numpy

    return msgspec.structs.replace(reply, scores=from_numpy(1 / (np.abs(to_numpy(reply.scores)) + 1e-9)))
