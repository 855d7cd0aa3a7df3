"""A typo is refused in the kernel, in a sentence, before an engine is looked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.client import launcher, loading, spelling
from djinn_jupyter.errors import DjinnError, MissingDependency, ModelNotFound, UsageError


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
        ("demo", {"listen": "127.0.0.1:80"}, "'127.0.0.1:80' is no address to listen on; write tcp://127.0.0.1:7777"),
        ("dmeo", {}, "There is no model dmeo; did you mean demo?"),
        ("./nowhere", {}, "There is no folder ./nowhere; give a folder, a hub name (owner/model) or demo."),
        ("a/b/c", {}, "There is no folder a/b/c; give a folder"),
        ("meta llama/Llama", {}, "'meta llama/Llama' is neither a folder nor the name of a model on the hub"),
        ("owner/a--b", {}, "'owner/a--b' is neither a folder nor the name of a model on the hub"),
        ("", {}, "'' is neither a folder nor the name of a model on the hub"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_an_engine(
    model: str, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "adopt_or_start", lambda *asked, **more: pytest.fail("an engine was looked for"))
    with pytest.raises(DjinnError) as refused:
        loading.load(model, **options)
    assert isinstance(refused.value, UsageError | ModelNotFound)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("model", "options", "means"),
    [
        ("demo", {"dtype": "bf16"}, ("dtype", "bfloat16")),
        ("demo", {"dtype": "torch.float16"}, ("dtype", "float16")),
        ("Qwen/Qwen2.5-0.5B", {"device": "cuda:1"}, ("device", "cuda:1")),
        ("gpt2", {"attention": "kernels-community/flash-attn"}, ("attention", "kernels-community/flash-attn")),
        ("HuggingFaceTB/SmolLM2-135M_x.1", {}, ("dtype", None)),
    ],
)
def test_what_may_be_meant_is_the_engines_to_judge(
    model: str, options: dict[str, Any], means: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Any] = []
    monkeypatch.setattr(loading, "attach", lambda entry: entry)
    monkeypatch.setattr(loading, "adopt_or_start", lambda identity, *_, **__: wanted.append(identity))
    loading.load(model, **options)
    assert getattr(wanted[0], means[0]) == means[1]


@pytest.mark.parametrize(
    ("holds", "is_refused"),
    [("notes.txt", True), ("config.json", False), ("m.gguf", False), ("adapter_config.json", False)],
)
def test_a_folder_without_a_model_is_refused(holds: str, is_refused: bool, tmp_path: Path) -> None:
    (tmp_path / holds).touch()
    if is_refused:
        with pytest.raises(ModelNotFound, match=r"holds no config\.json"):
            spelling._check_model(str(tmp_path))
    else:
        spelling._check_model(str(tmp_path))


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
