"""Quantized weights, kind by kind: the table of docs/quantized.md, cell by cell. `make one-quantized` runs it in an
environment that has the libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from torch import Tensor
from transformers import LlamaForCausalLM

from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.process.build import split_model
from djinn_jupyter.engine.process.weight_plan import settle
from djinn_jupyter.engine.requests.recipes import origin
from djinn_jupyter.engine.store.identity import check_identity, identity_of
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import CheckpointRefused, ModelDoesNotFit, ModelRefused, UnknownSite, UsageError
from djinn_jupyter.methods.sweep.request import Estimate, Sweep
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests import adapters
from tests.engine.adapters.adapting import add, let_go, use
from tests.engine.desk import Desk, Outcome, tokens
from tests.engine.gradients import plain_gradients
from tests.engine.memory.weights.saved import desk_from
from tests.engine.plain import generate
from tests.engine.quantized import files, writing
from tests.engine.quantized.writing import KINDS, PACKED, UNPACKED, plain_load
from tests.house.repository import ROOT

pytestmark = pytest.mark.slow

PROMPT, OTHER, NEW = tokens(14), tokens(14, seed=5), 4
LAYER = 1
FOUR = "bitsandbytes, 4 bits"
Hook = Callable[..., Any]


def opened(path: Path, data: Path, **options: Any) -> Desk:
    return desk_from(path, device="cpu", data_folder=data, **options)


@dataclass(slots=True)
class Served:
    """One kind of files, the engine of them, and the same load in plain transformers."""

    kind: str
    path: Path
    data: Path
    desk: Desk
    plain: Any

    @property
    def layer(self) -> Any:
        return self.plain.model.layers[LAYER]

    def with_hook(self, module: Any, hook: Hook, *, before: bool = False) -> Outcome:
        """Return `generate`'s outcome with a hook on a module of the plain model."""
        put = module.register_forward_pre_hook if before else module.register_forward_hook
        handle = put(hook)
        try:
            return generate(self.plain, PROMPT, NEW)
        finally:
            handle.remove()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.plain_folder(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS])
def served(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    kind, data = request.param, tmp_path_factory.mktemp("data")
    path = KINDS[kind][0](folder, data / "model")
    found = Served(kind=kind, path=path, data=data, desk=opened(path, data), plain=plain_load(kind, path))
    yield found
    found.desk.engine.close()


@pytest.fixture
def desk(served: Served) -> Iterator[Desk]:
    yield served.desk
    served.desk.close_all()
    let_go(served.desk)


def halved(module: Any, args: Any, output: Tensor) -> Tensor:
    return output * 0.5


def test_a_run_has_the_bits_of_generate_in_plain_transformers(served: Served, desk: Desk) -> None:
    desk.open()
    assert desk.outcome(desk.run(PROMPT, NEW)) == generate(served.plain, PROMPT, NEW)


NOTES = {
    "gguf": r"GGUF \(30 Q4_0, 9 F32\) unpacked to float32",
    "compressed-tensors": r"compressed-tensors \(pack-quantized\) unpacked to float32",
    "fp8": r"fp8 unpacked to bfloat16",
    "torchao": r"Int8WeightOnlyConfig by torchao [\d.]+ in float32",
    "bitsandbytes, 4 bits": r"nf4 in 4 bits by bitsandbytes [\d.]+( with the kernels of kernels [\d.]+)? in float32",
    "bitsandbytes, 8 bits": r"8 bits by bitsandbytes [\d.]+ in float32",
}


def test_the_card_and_the_provenance_say_what_was_done_to_the_weights(served: Served, desk: Desk) -> None:
    model, identity = desk.engine.description, desk.engine.persistence.identity
    note, made = model.notes[0], origin(identity, model)
    assert re.fullmatch(rf"Its weights are quantized: {NOTES[served.kind]}\.", note)
    assert made.quantization == note.removeprefix("Its weights are quantized: ").removesuffix(".")
    assert model.parameters == served.plain.num_parameters()


VALUES: dict[str, tuple[str, str]] = {
    "q": ("self_attn.q_proj", "output"),
    "k": ("self_attn.k_proj", "output"),
    "v": ("self_attn.v_proj", "output"),
    "z": ("self_attn.o_proj", "input"),
    "attn_out": ("self_attn.o_proj", "output"),
    "mlp_in": ("mlp.gate_proj", "input"),
    "mlp_pre": ("mlp.gate_proj", "output"),
    "mlp_post": ("mlp.down_proj", "input"),
    "mlp_out": ("mlp.down_proj", "output"),
}


def test_points_have_the_values_of_hooks_on_the_plain_model(served: Served, desk: Desk) -> None:
    absent = [one.point for one in desk.engine.description.points if one.layers == ()]
    assert absent == ["attn_out_post", "mlp_out_post"]  # as in any Llama
    for point, (path, side) in VALUES.items():
        seen: list[Tensor] = []
        handle = served.layer.get_submodule(path).register_forward_hook(
            lambda module, args, output, side=side, seen=seen: seen.append(args[0] if side == "input" else output)
        )
        with torch.inference_mode():
            served.plain(torch.tensor([PROMPT]), use_cache=True)
        handle.remove()
        desk.open()
        desk.stop_at(f"{point}.{LAYER}")
        desk.run(PROMPT, 1)
        assert torch.equal(desk.value().reshape(seen[0].shape[1:]), seen[0][0]), point


def test_an_edit_at_a_stop_and_a_rule_have_the_bits_of_hooks(served: Served, desk: Desk) -> None:
    desk.open()
    desk.steer(f"mlp_out.{LAYER}", Scale(factor=0.5))
    ruled = desk.outcome(desk.run(PROMPT, NEW))
    assert ruled == served.with_hook(served.layer.mlp.down_proj, halved)

    desk.open()
    desk.stop_at(f"mlp_out.{LAYER}", "step == 0")
    desk.run(PROMPT, NEW)
    desk.edit(Scale(factor=0.5))
    calls: list[int] = []

    def first(module: Any, args: Any, output: Tensor) -> Tensor:
        calls.append(1)
        return output * 0.5 if len(calls) == 1 else output

    assert desk.outcome(desk.resume()) == served.with_hook(served.layer.mlp.down_proj, first)


def test_a_fork_is_edited_and_its_parent_is_not(served: Served, desk: Desk) -> None:
    plain = generate(served.plain, PROMPT, NEW)
    desk.open()
    desk.stop_at(f"resid_post.{LAYER}", "step == 0")
    desk.run(PROMPT, NEW)
    desk.fork("b")
    desk.edit(Scale(factor=0.5), "b")
    assert desk.outcome(desk.resume("b"), "b").logits.ne(plain.logits).any()
    assert desk.outcome(desk.resume()) == plain


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_stopped_session_leaves_the_device_and_goes_on_with_the_same_bits(
    served: Served, desk: Desk, tier: str
) -> None:
    desk.open()
    desk.stop_at(f"resid_post.{LAYER}", "step == 1")
    desk.run(PROMPT, NEW)
    desk.swap_out(tier=tier)
    desk.swap_in()
    assert desk.outcome(desk.resume()) == generate(served.plain, PROMPT, NEW)


def test_a_session_goes_on_from_its_image(served: Served, desk: Desk) -> None:
    desk.open()
    desk.stop_at(f"resid_post.{LAYER}", "step == 1")
    desk.run(PROMPT, NEW)
    desk.ask(ask.SaveCheckpoint(session="a", name="image", replace=True))
    desk.close("a")
    desk.ask(ask.RestoreCheckpoint(session="a", name="image"))
    assert desk.outcome(desk.resume()) == generate(served.plain, PROMPT, NEW)


def dense(model: Any) -> Any:
    """Return a Llama whose matrices are what the linear modules of this one make of each unit vector."""
    made = LlamaForCausalLM(model.config).to(model.dtype).eval()
    made.load_state_dict(
        {name: value for name, value in model.state_dict().items() if "proj" not in name}, strict=False
    )
    with torch.no_grad():
        for path, module in made.named_modules():
            if path.endswith("_proj"):
                unit = torch.eye(module.in_features, dtype=model.dtype)
                module.weight.data = model.get_submodule(path)(unit[None])[0].T.clone()
    return made


def test_gradients_are_those_of_autograd_through_the_matrices_or_are_refused(served: Served, desk: Desk) -> None:
    desk.open()
    request = Sweep(
        session="a",
        clean=OTHER,
        corrupted=PROMPT,
        site="resid_post",
        over=("layer", "position"),
        metrics=("logit(17) - logit(42)",),
        estimate=Estimate(),
    )
    if served.kind == FOUR:
        with pytest.raises(
            UsageError, match=r"gives no gradients: on the CPU bitsandbytes computes 4 bits without them"
        ):
            desk.ask(request)
        return
    found = to_tensor(desk.ask(request).measured[0].values)
    for model, most in ((served.plain, 1e-4), (dense(served.plain), 0.05)):
        expected = plain_gradients.attributed(model.requires_grad_(False), OTHER, PROMPT, 17, 42)
        allowed = most if served.plain.dtype == torch.float32 else 0.05
        assert (found - expected).norm() <= allowed * expected.norm()


def test_an_adapter_has_the_bits_of_pefts_forward(served: Served, desk: Desk, tmp_path: Path) -> None:
    tensors = adapters.drawn(LlamaForCausalLM(served.plain.config), ("q_proj", "down_proj"))
    add(desk, adapters.saved(tmp_path, tensors))
    use(desk, "tuned")
    tuned = desk.outcome(desk.run(PROMPT, NEW, name="tuned"), "tuned")
    assert tuned == generate(adapters.adapted(plain_load(served.kind, served.path), tensors), PROMPT, NEW)
    assert tuned.logits.ne(generate(served.plain, PROMPT, NEW).logits).any()


def test_matrices_are_read_or_refused(served: Served, desk: Desk) -> None:
    if served.kind in UNPACKED:
        read = to_tensor(desk.ask(ask.ReadWeight(name=f"W_out.{LAYER}")).values)
        assert torch.equal(read, served.layer.mlp.down_proj.weight.T)
    else:
        for name in ("W_out", "W_Q", "W_OV"):
            with pytest.raises(UnknownSite, match=r"its weights are packed .*load the model that was quantized"):
                desk.ask(ask.ReadWeight(name=f"{name}.{LAYER}"))
    head = to_tensor(desk.ask(ask.ReadWeight(name="W_U")).values)
    assert torch.equal(head, served.plain.lm_head.weight.T)


def test_weights_sleep_or_stay(served: Served, desk: Desk) -> None:
    if served.kind in PACKED:
        with pytest.raises(UsageError, match=r"Packed weights .*stay on the device: stop the engine to free it"):
            desk.ask(ask.Sleep())
        return
    desk.ask(ask.Sleep())
    assert desk.engine.weights.asleep
    desk.open()
    assert desk.outcome(desk.run(PROMPT, NEW)) == generate(served.plain, PROMPT, NEW)


def test_layers_stream_or_are_refused(served: Served, desk: Desk) -> None:
    bound = desk.engine.weights.total
    if served.kind in PACKED:
        with pytest.raises(ModelDoesNotFit, match=r"packed weights .*do not stream: allow more with --device-memory"):
            opened(served.path, served.data, device_memory=bound)
        return
    desk.open()
    desk.stop_at(f"resid_post.{LAYER}", "step == 1")
    desk.run(PROMPT, NEW)
    desk.ask(ask.SaveCheckpoint(session="a", name="moved", replace=True))
    streamed = opened(served.path, served.data, device_memory=bound)
    try:
        assert streamed.engine.weights.streamed
        streamed.ask(ask.RestoreCheckpoint(session="a", name="moved"))  # of the same identity
        assert streamed.outcome(streamed.resume()) == generate(served.plain, PROMPT, NEW)
    finally:
        streamed.engine.close()


FORMS: dict[str, tuple[str, Callable[[Path, Path], Path]]] = {
    "GGUF (30 Q8_0, 9 F32)": ("gguf", lambda plain, to: writing.write_gguf(plain, to, "Q8_0")),
    "compressed-tensors (int-quantized)": (
        "compressed-tensors",
        lambda plain, to: writing.write_compressed(plain, to, "int-quantized"),
    ),
    "compressed-tensors (float-quantized)": (
        "compressed-tensors",
        lambda plain, to: writing.write_compressed(plain, to, "float-quantized"),
    ),
    "mxfp4": ("mxfp4", lambda plain, to: files.write_mxfp4(to)),
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_have_the_bits_of_generate_too(form: str, folder: Path, tmp_path: Path) -> None:
    kind, write = FORMS[form]
    path = write(folder, tmp_path / "model")
    desk = opened(path, tmp_path)
    desk.open()
    assert desk.outcome(desk.run(PROMPT, NEW)) == generate(plain_load(kind, path), PROMPT, NEW)
    assert desk.engine.description.notes[0].startswith(f"Its weights are quantized: {form} unpacked to ")
    desk.engine.close()


@pytest.mark.parametrize("beside", ["{}", '{"tokenizer_class": "BertTokenizer", "chat_template": "X"}'])
def test_a_gguf_file_has_its_tokenizer_with_it(beside: str, folder: Path, tmp_path: Path) -> None:
    """Whatever lies in its folder, which may be of another model."""
    path = writing.write_gguf(folder, tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "adapter_config.json"):
        path.with_name(name).write_text(beside)
    tokenizer = load_model(EngineConfig(model=str(path), device="cpu")).tokenizer
    assert tokenizer is not None
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("the hat")) == ["the", "\u0120", "h", "a", "t"]
    assert tokenizer.eos_token == "<end>"
    assert tokenizer.chat_template is None


def test_the_page_has_what_these_tests_prove_with_these_versions() -> None:
    page = (ROOT / "docs" / "quantized.md").read_text()
    rows = dict(re.findall(r"^\| ([\w\-, ]+) \| ((?:yes|refused)(?: \| (?:yes|refused))+) \|$", page, re.MULTILINE))
    last = {**dict.fromkeys(UNPACKED, "yes"), **dict.fromkeys(PACKED, "refused")}
    proved = {kind: [*["yes"] * 7, *[cell] * 3] for kind, cell in last.items()}
    proved[FOUR][5] = "refused"  # gradients
    assert {kind: cells.split(" | ") for kind, cells in rows.items()} == proved
    for package in ("torch", "transformers", "gguf", "compressed-tensors", "torchao", "bitsandbytes"):
        assert f"{package} {version(package)}".removesuffix("+cpu") in page


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300_000])


def of_another_architecture(path: Path) -> None:
    held = path.read_bytes()
    path.write_bytes(held.replace(b"llama", b"lamas"))


@pytest.mark.parametrize("spoil", [cut, of_another_architecture])
def test_a_gguf_file_that_transformers_cannot_read_is_refused_by_name(
    spoil: Callable[[Path], None], folder: Path, tmp_path: Path
) -> None:
    path = writing.write_gguf(folder, tmp_path / "model")
    spoil(path)
    with pytest.raises(ModelRefused, match=re.escape(str(path))):
        opened(path, tmp_path)


def test_weights_are_rounded_at_load_as_transformers_does_it(folder: Path, tmp_path: Path) -> None:
    desk = opened(folder, tmp_path, quantize="int8")
    desk.open()
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=writing.int8(), dtype="auto")
    assert desk.outcome(desk.run(PROMPT, NEW)) == generate(plain.eval(), PROMPT, NEW)
    assert desk.engine.description.notes[0].startswith("Its weights are quantized: Int8WeightOnlyConfig by torchao")
    desk.engine.close()


def test_what_is_quantized_is_not_rounded_again(folder: Path, tmp_path: Path) -> None:
    path = files.write_fp8(folder, tmp_path / "fp8")
    with pytest.raises(UsageError, match=r"is quantized already \(fp8\): leave --quantize out"):
        opened(path, tmp_path, quantize="int8")
    with pytest.raises(UsageError, match=r"--quantize rounds weights that are read, and --random-weights draws them"):
        opened(folder, tmp_path, quantize="int8", random_weights=True)


def test_packed_weights_lie_on_one_device(folder: Path, tmp_path: Path) -> None:
    config = EngineConfig(model=str(folder), device="cpu", quantize="int8", data_folder=tmp_path)
    loaded = load_model(config)
    with pytest.raises(ModelRefused, match=r"packed weights, which lie on one device: name it with --device"):
        settle(replace(config, device=None, devices="cuda:0,cuda:1"), loaded)
    with pytest.raises(ModelRefused, match=r"packed weights, which are not split: leave --tensor-parallel out"):
        split_model(replace(config, tensor_parallel=2), loaded, lambda line: None)


def test_two_loads_have_one_identity_and_another_than_the_plain_model(folder: Path, tmp_path: Path) -> None:
    rounded = [load_model(EngineConfig(model=str(folder), device="cpu", quantize="int8")) for _ in range(2)]
    first, second = (identity_of(one.model, one.device, one.quantization) for one in rounded)
    plain = load_model(EngineConfig(model=str(folder), device="cpu"))
    assert first == second
    with pytest.raises(CheckpointRefused, match="weights are not quantized, and this engine's Int8Weight"):
        check_identity(identity_of(plain.model, plain.device), first)
    with pytest.raises(CheckpointRefused, match=r"weights are int8 by an older torchao, and this engine's Int8Weight"):
        check_identity(msgspec.structs.replace(first, quantization="int8 by an older torchao"), first)


def test_fp8_is_unpacked_to_bfloat16_whatever_its_configuration_says(folder: Path, tmp_path: Path) -> None:
    path = files.write_fp8(folder, tmp_path / "model")
    with pytest.raises(UsageError, match=r"transformers unpacks fp8 to bfloat16 alone: leave --dtype float16 out"):
        load_model(EngineConfig(model=str(path), device="cpu", dtype="float16"))
    files.say(path, dtype="float16")
    loaded = load_model(EngineConfig(model=str(path), device="cpu"))
    assert {one.dtype for one in loaded.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("form", ["pack-quantized", "float-quantized"])
def test_what_an_older_transformers_does_not_unpack_is_refused(
    form: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = writing.write_compressed(folder, tmp_path / "model", form)
    made = transformers.CompressedTensorsConfig
    monkeypatch.setattr(transformers, "CompressedTensorsConfig", lambda dequantize: made())
    with pytest.raises(ModelRefused, match=rf"does not unpack compressed-tensors \({form}\) altogether: upgrade it"):
        load_model(EngineConfig(model=str(path), device="cpu"))


def test_eight_bits_with_a_threshold_are_refused_with_the_way_out(folder: Path, tmp_path: Path) -> None:
    write = writing.write_loaded(lambda: transformers.BitsAndBytesConfig(load_in_8bit=True))
    path = write(folder, tmp_path / "int8")
    with pytest.raises(ModelRefused, match=r"by all tokens of a pass .*Load the model that it was made from with --qu"):
        opened(path, tmp_path)


def patched(path: Path, name: str, value: int, *, at: int = 4) -> None:
    """Write a number into the header of a GGUF file, behind the name of a field."""
    held = path.read_bytes()
    begin = held.index(name.encode()) + len(name) + at
    path.write_bytes(held[:begin] + value.to_bytes(4, "little") + held[begin + 4 :])


def test_a_gguf_file_with_other_layers_than_its_header_names_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before transformers makes a model: that takes it half a minute for 179 layers."""
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", None)
    path = writing.write_gguf(folder, tmp_path / "model")
    patched(path, "llama.block_count", 2)
    with pytest.raises(ModelRefused, match=r"holds 18 tensors beyond the 2 layers .* blk\.2\..* be another model"):
        load_model(EngineConfig(model=str(path), device="cpu"))
    patched(path, "llama.block_count", 179)
    with pytest.raises(ModelRefused, match=r"names 179 layers .* no tensor of 175 of them, such as layer 4; copy or d"):
        load_model(EngineConfig(model=str(path), device="cpu"))
    patched(path, "llama.block_count", 10**8)
    with pytest.raises(ModelRefused, match=r"has num_hidden_layers 100000000; models of at most 1,000 layers"):
        load_model(EngineConfig(model=str(path), device="cpu"))


@pytest.mark.parametrize("scaled", [1.0, 8.0])
def test_scaled_rotary_positions_of_a_gguf_file_are_refused(scaled: float, folder: Path, tmp_path: Path) -> None:
    """Llama 3.1's file has them as a tensor, which transformers passes over."""
    factors = writing.np.full(files.HEAD // 2, scaled, dtype="float32")
    path = writing.write_gguf(folder, tmp_path / "factors", also=lambda to: to.add_tensor("rope_freqs.weight", factors))
    if scaled == 1:
        load_model(EngineConfig(model=str(path), device="cpu"))
        return
    with pytest.raises(ModelRefused, match=r"scales its rotary positions \(rope_freqs\.weight\), and the installed tr"):
        load_model(EngineConfig(model=str(path), device="cpu"))
    path = writing.write_gguf(
        folder, tmp_path / "yarn", also=lambda to: to.add_rope_scaling_type(writing.gguf.RopeScalingType.YARN)
    )
    with pytest.raises(ModelRefused, match=r"scales its rotary positions \(yarn\)"):
        load_model(EngineConfig(model=str(path), device="cpu"))


@pytest.mark.parametrize("field", [16, 24])
def test_a_damaged_head_of_a_gguf_file_is_no_matter_of_the_hub(field: int, folder: Path, tmp_path: Path) -> None:
    """A count of fields, or the length of the first name, of 2 ** 60."""
    path = writing.write_gguf(folder, tmp_path / "model")
    held = path.read_bytes()
    path.write_bytes(held[:field] + (2**60).to_bytes(8, "little") + held[field + 8 :])
    with pytest.raises(ModelRefused, match=r"is cut off or damaged, .*; copy or download it again\.$"):
        load_model(EngineConfig(model=str(path), device="cpu"))
