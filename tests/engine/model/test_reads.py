"""A value that nothing reads is only looked at: of every module, those where a plain change moves nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from djinn_jupyter.engine.model.discovery.make_taps import UNREAD
from djinn_jupyter.engine.model.discovery.recording import Border, RecordedOperations, Recording, changing, storage_of
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import InvalidEdit, UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.sites import Site, parse_site
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.families import build

PROMPT = tokens(9)
FAMILIES = ("llama", "gpt2", "gemma2", "mixtral", "gpt_oss", "deepseek_v3", "mamba2", "zamba2")


def logits(model: Any, hooks: Any = ()) -> Tensor:
    """Return the logits of a plain pass in which hooks have put other values."""
    put = []
    for module, before, after in hooks:
        put.append(
            module.register_forward_hook(after)
            if before is None
            else module.register_forward_pre_hook(before, with_kwargs=True)
        )
    with torch.no_grad():
        made: Tensor = model(torch.tensor([PROMPT], device=model.device), use_cache=True).logits
    for hook in put:
        hook.remove()
    return made


def module_taps(desk: Desk) -> list[Tap]:
    found = []
    for module in desk.engine.anatomy.modules:
        for end in ("input", "output"):
            try:
                found.append(desk.engine.anatomy.resolve(Site(point=end, path=module.path)))
            except UnknownSite:
                continue
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_is_unread_where_a_plain_change_of_it_moves_no_logit(family: str) -> None:
    desk = desk_of(family)
    plain = logits(desk.engine.model)
    unread = []
    for tap in module_taps(desk):
        if tap.module is None:
            continue
        border: Border = (tap.module, str(tap.site.point), tap.key)
        changed = not torch.equal(logits(desk.engine.model, changing([border])), plain)
        assert (tap.reason == UNREAD) != changed, (tap.site, tap.reason)
        unread += [] if changed else [tap]
    assert all(tap.editable == (tap.reason is None) for tap in unread)
    assert bool(unread) == (family not in ("gpt2", "mamba2", "zamba2"))


def test_a_tensor_of_numbers_is_made_where_it_is_written_down() -> None:
    """Its storage may have the address of a value that was let go; that one is not read with it."""
    operations = RecordedOperations()
    with operations.of(Recording(keep=lambda module: False)):
        of_numbers = torch.tensor([1.0, 2.0])
    (written,) = operations.recorded
    assert (written.read, written.made) == (frozenset(), {storage_of(of_numbers)})


def test_an_edit_and_a_rule_at_a_routers_logits_are_refused_in_a_sentence() -> None:
    desk = desk_of("mixtral")
    desk.open()
    router = next(m.path for m in desk.engine.anatomy.modules if m.kind.endswith("Router") and m.layer == 3)
    with pytest.raises(InvalidEdit, match="can be looked at, not changed: nothing in the model reads it"):
        desk.steer(f"{router}.output")
    desk.stop_at(f"{router}.output")
    stop = desk.run(PROMPT)
    assert parse_site(stop.site).path == router
    with pytest.raises(InvalidEdit, match="can be looked at, not changed: nothing in the model reads it"):
        desk.edit()
    assert desk.value().shape == (len(PROMPT), 4)
    desk.close_all()


class Probed(nn.Module):
    """An MLP beside which values are made: one that nothing reads, one that an operation reads for nothing, one that
    decides what code does."""

    def __init__(self, mlp: nn.Module, width: int) -> None:
        super().__init__()
        self.mlp = mlp
        self.idle, self.dropped, self.deciding, self.passed = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x)
        (self.dropped(x) * 2).sum()
        made: Tensor = self.mlp(self.passed(x))
        return made * 2 if bool((self.deciding(x) > -1e6).all()) else made


def test_what_is_read_for_nothing_is_unread_and_what_decides_is_read() -> None:
    model = build("llama", layers=4)
    layer = model.model.layers[2]
    layer.mlp = Probed(layer.mlp, model.config.hidden_size)
    desk = build_desk(model)
    sites = [f"model.layers.2.mlp.{name}.output" for name in ("idle", "dropped", "deciding", "passed")]
    assert [desk.engine.anatomy.resolve(parse_site(site)).editable for site in sites] == [False, False, True, True]
    desk.open()
    with pytest.raises(InvalidEdit, match="nothing in the model reads it"):
        desk.ask(ask.Steer(session="a", site=sites[0], edit=Scale(factor=5.0)))
