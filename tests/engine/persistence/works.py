"""Sessions that have got into every state in which one may be kept."""

from __future__ import annotations

import torch

from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add
from djinn_jupyter.wire.nouns import Sampling
from tests.engine.desk import Desk, tokens

PROMPT = tokens(21)


def in_prefill(desk: Desk) -> None:
    desk.stop_at(4, when="step == 0")
    desk.run(PROMPT, new=6)


def inside_a_layer(desk: Desk) -> None:
    point = next((p for p in desk.engine.description.points if p.point in ("mlp_out", "resid_mid") and p.layers), None)
    mixer = next(m.path for m in desk.engine.anatomy.modules if m.layer == 5 and m.path.count(".") == 3)
    desk.stop_at(f"{mixer}.output" if point is None else f"{point.point}.{(point.layers or ())[-1]}", when="step == 2")
    stop = desk.run(PROMPT, new=6)
    assert desk.session().frame.inside, stop


def in_decode(desk: Desk) -> None:
    desk.stop_at(3, when="step in (1, 2, 4)")
    desk.run(PROMPT, new=6)
    desk.resume()
    desk.resume()


def edited_and_steered(desk: Desk) -> None:
    width = desk.engine.anatomy.hidden_size
    desk.steer("resid_post.1", Add(vector=to_array(torch.linspace(-1, 1, width))), positions=(3, -1))
    desk.stop_at(4, when="step in (0, 3)")
    desk.run(PROMPT, new=6)
    desk.edit(positions=(-1,))
    desk.resume()
    desk.steer("resid_post.6")
    desk.edit()
    desk.edit(Add(vector=to_array(torch.linspace(-1, 1, width))))
    desk.ask(ask.EnableRule(session="a", number=1, enabled=False))
    desk.ask(ask.EnableEdit(session="a", number=1, enabled=False))


def drawn_with_a_seed(desk: Desk) -> None:
    desk.ask(ask.Watch(session="a", site="resid_post.2"))
    desk.stop_at(5, when="step in (2, 4)")
    desk.run(PROMPT, new=6, sampling=Sampling(temperature=0.9, top_p=0.95, seed=7))
    desk.resume()


def finished(desk: Desk) -> None:
    desk.stop_at(2, when="step in (0, 1)", once=True)
    desk.run(PROMPT, new=4)
    desk.resume()
    desk.run(tokens(5, seed=3), new=3, extend=True)


def gone_back(desk: Desk) -> None:
    desk.stop_at(3, when="step in (0, 1, 2)")
    desk.run(PROMPT, new=4)
    desk.resume()
    desk.edit()
    desk.resume()
    desk.back(2)


WORKS = (in_prefill, inside_a_layer, in_decode, edited_and_steered, drawn_with_a_seed, finished, gone_back)
FEWER = (inside_a_layer, edited_and_steered, gone_back)
"""What a file holds differs by the family's kind of cache in these; the others are told apart by one family."""
