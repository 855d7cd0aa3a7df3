"""A typo is refused in the kernel, in a sentence, before an engine is looked for."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter import machine
from djinn_jupyter.api import loading
from djinn_jupyter.cli.commands import as_typed
from djinn_jupyter.errors import DjinnError, MissingDependency, ModelNotFound, ModelRefused, UsageError
from djinn_jupyter.link import launcher, spelling


def without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "adopt_or_start", lambda *asked, **more: pytest.fail("an engine was looked for"))


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (
            "demo",
            {"dtype": "flaot32"},
            "'flaot32' is no dtype to serve a model in; did you mean float32? Write float32,",
        ),
        ("demo", {"dtype": "int4"}, "'int4' is no dtype to serve a model in. Write float32, bfloat16 or float16."),
        ("demo", {"device": "cuad"}, "'cuad' is no device; did you mean cuda? Write cpu, cuda or cuda:1."),
        ("demo", {"device": "gpu"}, "'gpu' is no device; did you mean cuda? Write cpu, cuda or cuda:1."),
        ("demo", {"device": "cuda:"}, "'cuda:' is no device"),
        ("demo", {"attention": "eagre"}, "'eagre' is no attention; did you mean eager? Write sdpa or eager."),
        ("demo", {"listen": "tcp://127.0.0.1:99999"}, "A port is at most 65535, not 99999."),
        ("demo", {"listen": "tcp://127.0.0.1:65536"}, "A port is at most 65535"),
        ("demo", {"listen": "127.0.0.1:80"}, "'127.0.0.1:80' is no address to listen on; write tcp://127.0.0.1:7777"),
        *(
            (
                "demo",
                {"checkpoints": address},
                "Checkpoints lie in a folder, or in a store that speaks S3, at s3://BUCKET",
            )
            for address in ("gs://lab/djinn", "s3://", "s3://lab/djinn?token=secret", "s3://anna:secret@lab/djinn")
        ),
        *(
            ("demo", {"moves": address}, "Sessions on their way wait in a store that speaks S3, at s3://BUCKET/PATH")
            for address in ("gs://lab/djinn", "s3://anna:secret@lab/djinn")
        ),
        ("demo", {"moves": "/lab/djinn"}, "Sessions wait in the folder of the shared journal without an option;"),
        ("dmeo", {}, "There is no model dmeo; did you mean demo?"),
        ("./nowhere", {}, "There is no folder ./nowhere; give a folder, a hub name (owner/model) or demo."),
        ("a/b/c", {}, "There is no folder a/b/c; give a folder"),
        ("meta llama/Llama", {}, "'meta llama/Llama' is neither a folder nor the name of a model on the hub"),
        ("owner/a--b", {}, "'owner/a--b' is neither a folder nor the name of a model on the hub"),
        ("", {}, "'' is neither a folder nor the name of a model on the hub"),
        ("~nobody-here/x", {}, "There is no model ~nobody-here/x: there is no such user."),
        ("a/" * 2500, {}, f"There is no model {'a/' * 30}...: file name too long."),
        ("demo", {"checkpoints": "~nobody-here/x"}, "'~nobody-here/x' names no folder."),
        ("demo", {"shared_journal": "a" * 300}, f"'{'a' * 59}... names no folder here: file name too long."),
        ("demo", {"device": "cuda:3"}, "There is no device cuda:3: the system shows no GPU. Write cpu, or leave"),
        (3, {}, "A model is named by a text or a path, not by int: write dj.load('demo')."),
        ("demo", {"dtype": torch.int8}, "'torch.int8' is no dtype to serve a model in. Write float32,"),
        ("demo", {"device": "mps"}, "mps is the GPU of a Mac, which this machine is not."),
    ],
)
def test_what_cannot_be_meant_is_refused_without_an_engine(
    model: str, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_an_engine(monkeypatch)
    monkeypatch.setattr(machine, "DEV", Path("no such folder"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(spelling.sys, "platform", "linux")
    with pytest.raises(DjinnError) as refused:
        loading.load(model, **options)
    assert isinstance(refused.value, UsageError | ModelNotFound)
    assert "secret" not in str(refused.value)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("model", "options", "means"),
    [
        ("demo", {"dtype": "bf16"}, ("dtype", "bfloat16")),
        ("demo", {"dtype": "torch.float16"}, ("dtype", "float16")),
        ("demo", {"dtype": torch.bfloat16}, ("dtype", "bfloat16")),
        ("demo", {"device": torch.device("cuda", 1)}, ("device", "cuda:1")),
        ("Qwen/Qwen2.5-0.5B", {"device": "cuda:1"}, ("device", "cuda:1")),
        ("gpt2", {"attention": "kernels-community/flash-attn"}, ("attention", "kernels-community/flash-attn")),
        ("HuggingFaceTB/SmolLM2-135M_x.1", {}, ("dtype", None)),
        ("demo", {"listen": "tcp://127.0.0.1:65535"}, ("model", "demo")),
    ],
)
def test_what_may_be_meant_is_the_engines_to_judge(
    model: str, options: dict[str, Any], means: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted: list[Any] = []
    monkeypatch.setattr(loading, "attach", lambda entry: entry)
    monkeypatch.setattr(loading, "adopt_or_start", lambda identity, *_, **__: wanted.append(identity))
    monkeypatch.setattr(machine, "DEV", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia0").touch()
    loading.load(model, **options)
    assert getattr(wanted[0], means[0]) == means[1]


@pytest.mark.parametrize(
    ("file", "holds", "said"),
    [
        ("notes.txt", "", "The folder {} holds no config.json; give a folder saved by save_pretrained."),
        ("config.json", "{", "The configuration of {} cannot be read: config.json is not JSON"),
        ("m.gguf", "GGUF", "The folder {} cannot be served: a GGUF file is written for llama.cpp; load the model"),
        ("adapter_config.json", "{}", "The folder {} holds an adapter and no model of its own; merge it with peft"),
        ("adapter_config.json", '{"base_model_name_or_path": "a/b"}', "The folder {} holds an adapter of a/b and no"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_without_an_engine(
    file: str, holds: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_an_engine(monkeypatch)
    (tmp_path / file).write_text(holds)
    with pytest.raises((ModelNotFound, ModelRefused)) as refused:
        loading.load(tmp_path)
    assert str(refused.value).startswith(said.format(tmp_path))


@pytest.mark.parametrize(
    ("name", "said"), [("m.gguf", "{} cannot be served: a GGUF file is written"), ("w.bin", "{} is a file; give the")]
)
def test_so_is_a_file(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_an_engine(monkeypatch)
    (tmp_path / name).touch()
    with pytest.raises((ModelNotFound, ModelRefused)) as refused:
        loading.load(tmp_path / name)
    assert str(refused.value).startswith(said.format(tmp_path / name))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--wehn", "; did you mean --when?"),
        ("--k", "; did you mean -k?"),
        ("--max-new-tokens", "; did you mean --max-tokens?"),
        ("--off", ""),  # --coef shares as many letters with it, dashes included
    ],
)
def test_an_option_is_near_one_by_its_letters_or_by_its_name_in_python(typed: str, said: str) -> None:
    known = ["--when", "-k", "--max-tokens", "--coef"]
    assert spelling.closest_option(typed, known, {"max_new_tokens": "--max-tokens"}) == said


def test_with_the_client_alone_the_kernel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling, "find_spec", lambda name: None if name in ("torch", "tokenizers") else object())
    monkeypatch.setattr(launcher, "running_engines", lambda: ())
    with pytest.raises(MissingDependency) as refused:
        loading.load("demo")
    assert str(refused.value) == (
        "An engine needs torch and tokenizers, which are not installed here: pip install 'djinn-jupyter[engine]'."
    )


def test_an_engine_without_torch_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
from djinn_jupyter.engine.__main__ import main
sys.exit(main(["--model", "demo"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "MissingDependency: An engine needs torch, which is not installed" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("files", "visible", "why"),
    [
        (("nvidia0", "nvidiactl", "nvidia-uvm"), None, None),
        (("dxg",), "0", None),
        (("nvidia0",), "", "CUDA_VISIBLE_DEVICES hides every GPU"),
        (("nvidia0",), "-1", "CUDA_VISIBLE_DEVICES hides every GPU"),
        (("nvidiactl", "nvidia-uvm"), None, "the system shows no GPU"),  # a driver, and no card in this container
        ((), None, "the system shows no GPU"),
    ],
)
def test_a_gpu_that_this_process_cannot_see_is_refused_with_the_reason(
    files: tuple[str, ...], visible: str | None, why: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "DEV", tmp_path)
    for name in files:
        (tmp_path / name).touch()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.why_no_gpu() == why


def test_a_command_spells_its_own_options_and_leaves_the_arguments_of_python() -> None:
    options = argparse.Namespace(trust_remote_code=False, device_memory=None)
    said = "device_memory is 3; allow it with --trust-remote-code, in Python trust_remote_code=True."
    assert as_typed(options, said) == said.replace("device_memory", "--device-memory", 1)
