"""The name of a model in the files of a module, beside the engine's: the same, perhaps the same, or another."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.api import note_on
from tests.process.fake_engine import DESCRIPTION

SAME = (
    ("gpt2-small", "gpt2", "GPT2LMHeadModel"),
    ("gpt2", "openai-community/gpt2", "GPT2LMHeadModel"),
    ("google/gemma-3-1b-pt", "gemma-v3-1b-pt", "Gemma3ForCausalLM"),
    ("EleutherAI/pythia-70m", "/models/pythia-70m/", "GPTNeoXForCausalLM"),
)
PERHAPS = (
    ("gemma-2-2b", "google/gemma-2-2b-it", "Gemma2ForCausalLM"),
    ("meta-llama/Llama-3.2-1B", "/models/mine", "LlamaForCausalLM"),
    ("meta-llama/Llama-3-8B", "meta-llama/Llama-3.1-8B", "LlamaForCausalLM"),
    ("/scratch/run7", "/models/mine", "LlamaForCausalLM"),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "/models/mine", "LlamaForCausalLM"),
)
ANOTHER = (
    ("pythia-70m", "gpt2", "GPT2LMHeadModel"),
    ("pythia-70m", "/models/mine", "GPT2LMHeadModel"),
    ("/models/gemma-2-2b", "/models/mine", "LlamaForCausalLM"),
    ("tiny-stories-33M", "demo", "LlamaForCausalLM"),
)


def note(named: str, here: str, architecture: str) -> str | None:
    served = msgspec.structs.replace(DESCRIPTION, name=here, architecture=architecture)
    return note_on(Path("folder"), "model_name", named, (), served)


@pytest.mark.parametrize(("named", "here", "architecture"), SAME)
def test_the_same_model_is_no_note(named: str, here: str, architecture: str) -> None:
    assert note(named, here, architecture) is None


@pytest.mark.parametrize(("named", "here", "architecture"), PERHAPS)
def test_a_name_that_may_be_of_the_same_model_is_told(named: str, here: str, architecture: str) -> None:
    assert note(named, here, architecture) == f"its files say that it was trained on {named}"


@pytest.mark.parametrize(("named", "here", "architecture"), ANOTHER)
def test_another_model_is_refused(named: str, here: str, architecture: str) -> None:
    with pytest.raises(UsageError, match=f"folder has model_name '{named}', and this engine serves {here} "):
        note(named, here, architecture)
