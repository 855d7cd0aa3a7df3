"""What is caught and read of a pass, also by other parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from transformers import AutoModelForMultimodalLM, DynamicCache, Qwen2_5OmniConfig

from djinn_jupyter.engine.model.discovery.make_taps import UNREAD
from djinn_jupyter.engine.model.discovery.model_map import discover
from djinn_jupyter.engine.model.discovery.recording import Border, RecordedOperations, Recording, changing, storage_of
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.model.loading.load import LoadedModel, load_model
from djinn_jupyter.engine.model.loading.other_parts import LeftOut, leave_out, other_parts
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import InvalidEdit, ModelRefused, UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.sites import Site, parse_site
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.model.looking import TOKENS, Subject, noise, run, subject
from tests.families import build, configuration

INSIDE = ["attn_in.3", "q.3", "k.3", "v.3", "k_rot.3", "q_rot.3", "attn_scores.3", "pattern.3", "z.3", "attn_out.3"]
LLAMA = [*INSIDE, "resid_mid.3", "mlp_in.3", "mlp_pre.3", "mlp_post.3", "mlp_out.3"]


class Leave(BaseException):
    """Leaves a forward as the gates do."""


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.fixture(params=["sdpa", "eager"])
def llama(request: pytest.FixtureRequest) -> Iterator[Subject]:
    tiny = subject("llama", request.param)
    before = hooks_of(tiny.model)
    yield tiny
    assert hooks_of(tiny.model) == before
    assert not _get_current_function_mode_stack()


def test_sites_of_a_layer_are_met_in_order_of_execution(llama: Subject) -> None:
    order = run(llama, *reversed(LLAMA)).order
    assert set(order) == set(LLAMA)
    assert order.index("attn_in.3") == 0
    assert order.index("v.3") < order.index("k_rot.3") < order.index("q_rot.3") < order.index("z.3")
    assert order.index("attn_scores.3") < order.index("z.3") < order.index("attn_out.3") < order.index("resid_mid.3")
    assert order[-4:] == ["mlp_in.3", "mlp_pre.3", "mlp_post.3", "mlp_out.3"]


@pytest.mark.parametrize("site", LLAMA)
def test_leaving_by_an_exception_leaves_nothing_behind(llama: Subject, site: str) -> None:
    plain = run(llama).logits
    cache = DynamicCache(config=llama.model.config)

    def leave(tap: Tap, raw: Tensor) -> Tensor | None:
        raise Leave

    with pytest.raises(Leave), catch([llama.tap(site)], leave):
        llama.model(torch.tensor([TOKENS]), past_key_values=cache)
    assert "update" not in vars(cache)
    assert not _get_current_function_mode_stack()
    again = run(llama).logits
    assert torch.equal(plain, again)


def test_looking_changes_no_bit(llama: Subject) -> None:
    plain, looked = run(llama).logits, run(llama, *LLAMA, "embed", "ln_final").logits
    assert torch.equal(plain, looked)


def test_a_replacement_made_from_outside_is_put_in_place_at_the_residual(llama: Subject) -> None:
    """A resumed pass does so: the tensor handed back is another one than the one met."""
    given = noise(7)(torch.empty(1, len(TOKENS), 32))

    def replace(tap: Tap, raw: Tensor) -> Tensor | None:
        return given.clone()

    with catch([llama.tap("resid_mid.3")], replace):
        put = llama.model(torch.tensor([TOKENS])).logits
    edited = run(llama, edits={"resid_mid.3": noise(7)}).logits
    assert torch.equal(put, edited)


def test_what_the_listener_computes_with_the_model_is_not_listened_to(llama: Subject) -> None:
    met: list[str] = []

    def look_again(tap: Tap, raw: Tensor) -> Tensor | None:
        met.append(str(tap.site))
        llama.model(torch.tensor([[3, 4]]), use_cache=False)
        raw.float().softmax(-1)
        return None

    taps = [llama.tap(site) for site in LLAMA]
    with catch(taps, look_again):
        llama.model(torch.tensor([TOKENS]), past_key_values=DynamicCache(config=llama.model.config))
    assert sorted(met) == sorted(LLAMA)


def test_recomputed_maps_cannot_be_replaced() -> None:
    fused = subject("llama")
    with pytest.raises(RuntimeError, match="recomputed"), catch([fused.tap("pattern.3")], lambda tap, raw: raw + 1):
        fused.model(torch.tensor([TOKENS]))


def test_a_module_shared_by_two_layers_is_met_in_the_layer_asked_for() -> None:
    model = build("llama")
    model.model.layers[5].mlp = model.model.layers[2].mlp
    shared = Subject(model, discover(model))
    assert shared.tap("mlp_post.2").module is shared.tap("mlp_post.5").module
    both = run(shared, "mlp_post.2", "mlp_post.5", "mlp_out.2", "mlp_out.5")
    assert both.order == ["mlp_post.2", "mlp_out.2", "mlp_post.5", "mlp_out.5"]
    edited = run(shared, "mlp_out.2", "mlp_out.5", edits={"mlp_post.5": noise(1)})
    assert torch.equal(edited["mlp_out.2"], both["mlp_out.2"])
    assert not torch.equal(edited["mlp_out.5"], both["mlp_out.5"])


def test_an_edit_of_q_rot_is_what_attention_uses(llama: Subject) -> None:
    seen = run(llama, "attn_scores.3", edits={"q_rot.3": torch.zeros_like})
    seen_keys = torch.ones(len(TOKENS), len(TOKENS), dtype=torch.bool).tril()
    assert not seen["attn_scores.3"].transpose(0, 1)[:, seen_keys].any()


def test_without_taps_nothing_is_hooked() -> None:
    tiny = subject("gpt2")
    before = hooks_of(tiny.model)
    with catch([], lambda tap, raw: None):
        assert hooks_of(tiny.model) == before


PROMPT = tokens(9)
FAMILIES = ("gpt2", "mixtral", "gpt_oss", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gemma2", "mamba2")))


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
    desk = desk_of(family, layers=4)
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
    assert bool(unread) == (family not in ("gpt2", "mamba2"))


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


def saved(name: str, where: Path, **more: torch.Tensor) -> LoadedModel:
    """A tiny model as its own class saves it, with `more` in the file, loaded from there."""
    build(name).save_pretrained(where)
    if more:
        path = where / "model.safetensors"
        save_file({**load_file(path), **{key.replace("__", "."): value.clone() for key, value in more.items()}}, path)
    return load_model(EngineConfig(model=str(where), device="cpu"))


@pytest.mark.parametrize(
    ("name", "read_as", "left_out"),
    [
        ("llava", "LlavaForConditionalGeneration", r"model\.vision_tower \(39 weights\)"),
        ("qwen2_audio", "Qwen2AudioForConditionalGeneration", r"model\.audio_tower \(\d+ weights\)"),
        ("llama4", "Llama4ForCausalLM", r"multi_modal_projector \(1 weight\), vision_model \(\d+ weights\)"),
        ("qwen3_5", "Qwen3_5ForCausalLM", r"model\.visual \(\d+ weights\)"),
        ("audioflamingo3", "AudioFlamingo3ForConditionalGeneration", r"model\.audio_tower \(\d+ weights\)"),
        ("emu3", "Emu3ForConditionalGeneration", r"model\.vqmodel \(\d+ weights\)"),
    ],
)
def test_a_checkpoint_with_a_tower_is_read_whole_and_says_what_is_left_out(
    tmp_path: Path, name: str, read_as: str, left_out: str
) -> None:
    """Llama 4's tower is unexpected to its causal class, Qwen 3.5's is declared as ignored, Audio Flamingo is built as
    if it were an encoder-decoder, and Emu3's causal class finds none of its weights by their names."""
    loaded = saved(name, tmp_path)
    assert type(loaded.model).__name__ == read_as
    (note,) = loaded.notes
    assert re.search(left_out, note)


LEFT_OUT = re.compile(r"(model\.)?visual \(\d+ weights\)")
"""The name of a thinker's tower in the note: older releases of transformers have it beside the model."""


def test_of_a_thinker_and_a_talker_the_thinker_is_served(tmp_path: Path) -> None:
    """Their class has no forward of its own; and it wants a file of speakers, which a text does not need."""
    thinker = configuration("qwen2_5_omni_thinker")
    whole = AutoModelForMultimodalLM.from_config(
        Qwen2_5OmniConfig(thinker_config=thinker.to_dict(), enable_audio_output=False)
    )
    spoken = {"talker.model.embed_tokens.weight": torch.ones(4, 4), "token2wav.code2wav_bigvgan_model.w": torch.ones(1)}
    whole.save_pretrained(tmp_path, state_dict={**whole.state_dict(), **spoken})
    loaded = load_model(EngineConfig(model=str(tmp_path), device="cpu"))
    assert type(loaded.model).__name__ == "Qwen2_5OmniThinkerForConditionalGeneration"
    weights = whole.thinker.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.model.state_dict().items())
    assert LEFT_OUT.search(loaded.notes[0])
    assert re.search(r"talker \(1 weight\), token2wav \(1 weight\)", loaded.notes[0])


def test_what_is_left_over_beside_the_text_is_left_out_and_within_it_refused(tmp_path: Path) -> None:
    scale = torch.ones(1)
    beside = saved("llava", tmp_path / "beside", model__vision_tower__scale=scale, new_tower__norm__weight=scale)
    assert "new_tower (1 weight)" in beside.notes[0]
    with pytest.raises(ModelRefused, match=r"language_model\.layers\.3\.mlp\.up_proj\.weight_scale"):
        saved("llava", tmp_path / "within", model__language_model__layers__3__mlp__up_proj__weight_scale=scale)
    with pytest.raises(ModelRefused, match=r"model\.language_model\.layers\.8\."):
        saved("llava", tmp_path / "more", model__language_model__layers__8__mlp__up_proj__weight=scale)


def test_a_part_that_is_left_out_has_no_weights_and_still_says_where_it_is() -> None:
    model = build("qwen2_audio")
    tower = other_parts(model)["model.audio_tower"]
    weights = sum(parameter.numel() for parameter in model.parameters())
    leave_out(model)
    stand_in = model.get_submodule("model.audio_tower")
    assert isinstance(stand_in, LeftOut)
    assert (stand_in.config, stand_in.dtype, stand_in.device) == (tower.config, tower.dtype, tower.device)
    assert sum(parameter.numel() for parameter in model.parameters()) == weights - tower.num_parameters()
    assert other_parts(model) == {}
    with pytest.raises(ValueError, match=r"runs model\.audio_tower also without an image or sound"):
        stand_in(torch.ones(1))


def test_a_model_without_towers_is_left_as_it_is() -> None:
    model = build("llama")
    before = list(model.named_modules())
    assert leave_out(model) is model
    assert list(model.named_modules()) == before


def test_what_is_left_out_is_told_while_loading_and_in_the_description(tmp_path: Path) -> None:
    """It is told also after sleep, which loads the weights anew."""
    whole = build("llava")
    whole.save_pretrained(tmp_path)
    said: list[str] = []
    engine = open_engine(EngineConfig(model=str(tmp_path), device="cpu", page_positions=16), progress=said.append)
    (note,) = engine.description.notes
    assert note in said
    tower = other_parts(whole)["model.vision_tower"]
    assert engine.description.parameters == whole.num_parameters() - tower.num_parameters()
    before = engine.forward.lens(torch.ones(1, 32))
    engine.weights.sleep()
    assert torch.equal(engine.forward.lens(torch.ones(1, 32)), before)
