"""An engine's description of the model it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from transformers import PreTrainedModel

from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.chat_template import has_chat_template
from djinn_jupyter.engine.model.loading.load import LoadedModel
from djinn_jupyter.engine.session.generation import model_settings
from djinn_jupyter.wire.nouns import CheckResult, ModelDescription
from djinn_jupyter.wire.texts import sendable

UNREACHABLE: Final = 2**53  # positions: a number that means no limit


def describe(
    loaded: LoadedModel,
    anatomy: Anatomy,
    geometry: CacheGeometry,
    checks: Sequence[CheckResult],
    weight_bytes: int,
    token_by_token: bool = False,
    placed: str | None = None,
    parameters: int | None = None,
) -> ModelDescription:
    """Describe the model. `token_by_token`: two chunks do not match one shot on this family, so prompts are fed token
    by token. `placed`: the places of the layers on several devices or ranks; `parameters`: their number, where this
    process has only a part."""
    model = loaded.model
    text = model.config.get_text_config()
    logits = anatomy.taps["logits", None]
    assert isinstance(logits, Tap)
    return ModelDescription(
        name=sendable(loaded.name),
        revision=loaded.revision,
        architecture=type(model).__name__,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
        attention=str(model.config._attn_implementation),
        layers=len(anatomy.layers),
        hidden_size=anatomy.hidden_size,
        vocab_size=logits.width or 0,
        context_length=position_limit(text),
        parameters=parameters or _parameters(loaded),
        weight_bytes=weight_bytes,
        has_tokenizer=loaded.tokenizer is not None,
        has_chat_template=has_chat_template(loaded.tokenizer),
        eos_token_ids=tuple(token for token in eos_tokens(model) if 0 <= token < (logits.width or 0)),
        points=anatomy.points(),
        cache_groups=tuple(group.describe() for group in geometry.groups),
        recurrent_state_bytes=geometry.recurrent_state_bytes,
        feeding="token by token" if token_by_token else "chunks",
        generation_defaults=generation_defaults(model),
        checks=tuple(checks),
        notes=(*loaded.notes, *_absent(anatomy.absent), *([f"{placed}."] if placed else [])),
    )


def _parameters(loaded: LoadedModel) -> int:
    """Return the number of parameters; of packed ones as many as were packed, by transformers' count."""
    model = loaded.model
    return model.num_parameters() if loaded.packed else sum(parameter.numel() for parameter in model.parameters())


def _absent(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a note where absent layers make the layer count differ from the model's."""
    if not paths:
        return ()
    shown = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
    return (f"A text does not run {shown}: these layers are absent, and layers are counted without them.",)


def eos_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the tokens that end a text, from the model's generation config."""
    found = model.generation_config.eos_token_id if model.generation_config else None
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)


def generation_defaults(model: PreTrainedModel) -> dict[str, str]:
    """Return the generation settings of the model's authors that a plain run does not apply."""
    return {name: sendable(str(value)) for name, value in model_settings(model).items()}


def position_limit(configuration: Any) -> int | None:
    """Return the number of positions of the model; None without a limit of its own (state-space models). Dynamic rotary
    frequencies stretch beyond the trained length, by their factor."""
    found = getattr(configuration, "max_position_embeddings", None)
    if not isinstance(found, int) or found <= 0:
        return None
    rotary = getattr(configuration, "rope_parameters", None) or {}
    reached = found * rotary["factor"] if rotary.get("rope_type") == "dynamic" else found
    return int(reached) if reached < UNREACHABLE else None
