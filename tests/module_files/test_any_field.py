"""Whatever field with whatever value stands in a file of any format: it is refused by its name, or it has no effect by
the rule, and a field that is computed takes no value that it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files import circuit_tracer, gemma_scope, peft
from djinn_jupyter.modules.files import saelens as saelens_fields
from djinn_jupyter.modules.files.files import FieldTable
from djinn_jupyter.modules.files.folder import read_folder
from djinn_jupyter.modules.files.peft import read_adapter
from tests import adapters, gemma_scopes, saes, transcoders

WIDTH = 16
Said = Mapping[str, Any]
PLACE = {"hook_name": "blocks.4.hook_resid_pre"}
MATRICES = {
    f"base_model.model.layers.0.q_proj.lora_{half}.weight": torch.ones(shape)
    for half, shape in (("A", (adapters.RANK, WIDTH)), ("B", (WIDTH, adapters.RANK)))
}


def placed(said: Said) -> dict[str, Any]:
    return {} if "hook_point" in said else PLACE


def saelens(folder: Path, said: Said) -> Any:
    return read_folder(saes.saved(folder, saes.drawn(WIDTH), **(placed(said) | dict(said))))


def saelens_metadata(folder: Path, said: Said) -> Any:
    return read_folder(saes.saved(folder, saes.drawn(WIDTH), metadata=placed(said) | dict(said)))


def saelens_model(folder: Path, said: Said) -> Any:
    return read_folder(saes.saved(folder, saes.drawn(WIDTH), **PLACE, model_from_pretrained_kwargs=said))


def of_gemma_scope(folder: Path, said: Said) -> Any:
    return read_folder(gemma_scopes.saved(folder, saes.drawn(WIDTH, "jumprelu"), read="model.layers.3.output", **said))


def of_circuit_tracer(folder: Path, said: Said) -> Any:
    transcoders.set_saved(folder, {0: transcoders.drawn(WIDTH)}, config=False)
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in said.items())
    (folder / "config.yaml").write_text(lines, encoding="utf-8")
    return read_folder(folder, 0)


def of_peft(folder: Path, said: Said) -> Any:
    return read_adapter(adapters.saved(folder, MATRICES, **said))


READERS: dict[str, tuple[Callable[[Path, Said], Any], FieldTable]] = {
    "SAELens": (saelens, saelens_fields.CONFIG),
    "SAELens's metadata": (saelens_metadata, saelens_fields.METADATA),
    "SAELens's model": (saelens_model, saelens_fields.MODEL),
    "Gemma Scope": (of_gemma_scope, gemma_scope.CONFIG),
    "circuit-tracer": (of_circuit_tracer, circuit_tracer.CONFIG),
    "PEFT": (of_peft, peft.LORA),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text("abc -#:", max_size=6),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inside, max_size=2),
    max_leaves=4,
)
FREE = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def tried(read: Callable[[Path, Said], Any], folder: Path, said: Said) -> tuple[Any, str]:
    """Return what is read, or with what words it is refused."""
    try:
        return read(folder, said), ""
    except UsageError as error:
        return None, str(error)


def content(found: Any) -> Any:
    """Return all that is computed with: everything but the folder, the digest and what was told."""
    if hasattr(found, "modules"):
        return found.modules
    return found.form, {name: bytes(one.data) for name, one in found.tensors.items()}


@pytest.mark.parametrize("reader", READERS)
@given(data=st.data())
@FREE
def test_a_field_that_is_not_computed_is_refused_or_has_no_effect(tmp_path: Path, reader: str, data: Any) -> None:
    read, table = READERS[reader]
    known = sorted({*table.harmless, *table.refused})
    name = data.draw(st.sampled_from(known) | st.from_regex(r"[a-z]{1,8}_[a-z]{1,8}", fullmatch=True))
    value = data.draw(JSON)
    assume(name not in table.computed)
    found, refused = tried(read, tmp_path, {name: value})
    if refused:
        assert f"has {name} " in refused
        assert name not in table.harmless
        return
    plain = read(tmp_path, {})
    assert content(found) == content(plain)
    text = isinstance(value, str) and reader == "circuit-tracer" and value.strip().lower() in circuit_tracer.UNSET
    assert name in table.harmless or table.is_unset(name, value) or text
    assert (name in getattr(found, "unknown", ())) == (name not in table)


JUNK: tuple[Any, ...] = ({"x": 1}, [[1]], 7.25, "such as none")
TEXTS = frozenset({
    "base_model_name_or_path", "exclude_modules", "hf_hook_name", "hf_hook_point_in", "hook_name", "hook_point",
    "model_name",
})  # fmt: skip
TAKEN: dict[type, frozenset[str]] = {
    str: TEXTS,
    float: frozenset({"lora_alpha"}),
    dict: frozenset({"alpha_pattern", "rank_pattern"}),
    list: frozenset(),
}
WITHOUT_EFFECT = frozenset({("SAELens", "k"), ("circuit-tracer", "model_name")})  # no topk; a text of YAML


@pytest.mark.parametrize(
    ("reader", "name"), [(one, name) for one, (_, table) in READERS.items() for name in sorted(table.computed)]
)
def test_a_computed_field_takes_no_value_that_it_cannot_be(tmp_path: Path, reader: str, name: str) -> None:
    for number, value in enumerate(JUNK):
        found, refused = tried(READERS[reader][0], tmp_path / str(number), {name: value})
        if name in TAKEN[type(value)] or (reader, name) in WITHOUT_EFFECT:
            assert found is not None
        else:
            assert name in refused, (value, found)
