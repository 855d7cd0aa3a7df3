from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, DynamicCache
from transformers.models.auto import modeling_auto

from djinn_jupyter.engine.model.discovery.recording import cache_argument
from tests.engine.families_report import PAGE, page, row
from tests.engine.test_exact import FAMILIES as FOURTEEN
from tests.families import FAMILIES, MORE, MORE_REFUSED, REFUSED, TOWERS_REFUSED, WITH_TOWERS, build, sees_later_tokens
from tests.remaining_families import NOT_BUILT

OF = re.findall(r"transformers (\S+) and", PAGE.read_text())[0]
IS_OF_THIS = transformers.__version__ == OF


def named() -> list[str]:
    """Return the families that the page names."""
    rows = [line for lines in sections() for line in lines if line.startswith("| ")]
    names = [row.removeprefix("| ").split(" | ")[0] for row in rows]
    return [name for name in names if name != "family"]


def sections() -> tuple[list[str], list[str]]:
    served, _, refused = PAGE.read_text().partition("## Refused")
    return [line for line in served.splitlines() if line.startswith("| ")], refused.splitlines()


def test_none_of_the_fourteen_is_refused() -> None:
    served = {line.split(" | ")[0].removeprefix("| ") for line in sections()[0]}
    assert served >= set(FOURTEEN)


def test_the_page_names_every_family_once() -> None:
    """But for those that an older transformers does not have."""
    names = [name for name in named() if name.partition(":")[0] in CONFIG_MAPPING or name in NOT_BUILT]
    families = [*FAMILIES, *MORE, *REFUSED, *MORE_REFUSED, *WITH_TOWERS, *TOWERS_REFUSED, *NOT_BUILT]
    assert sorted(names) == sorted(families)


MAPPINGS = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=["causal", "multimodal", "image-text"])
def test_the_page_names_every_family_that_transformers_builds(mapping: dict[str, str]) -> None:
    """One that a later transformers adds has to be built tiny, or named with the reason why it is not."""
    families = {name.partition(":")[0] for name in named()}
    assert set(mapping) <= families, sorted(set(mapping) - families)


@pytest.mark.parametrize("name", ["falcon", "rwkv", "llava"])
def test_a_row_is_what_an_engine_says_now(name: str) -> None:
    """Another transformers than the page's may lay a model out otherwise; an engine serves the same families, but for
    those that this transformers computes from later tokens too, or does not compute from a cache."""
    served, line = row(name)
    if IS_OF_THIS:
        assert line in PAGE.read_text().splitlines()
    else:
        listed = any(one.startswith(f"| {name} |") for one in sections()[0])
        assert served == (listed and not sees_later_tokens(name) and goes_on_from_a_cache(name)), line


def goes_on_from_a_cache(name: str) -> bool:
    """Return whether plain transformers computes the next token from a cache: GIT's does not in 5.15."""
    model: Any = build(name)
    tokens = torch.tensor([[5, 17, 44]])
    cache = {cache_argument(model): DynamicCache(config=model.config), "use_cache": True}
    model(tokens, **cache)
    try:
        model(tokens[:, :1], **cache)
    except TypeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAMILIES, *MORE, *REFUSED, *MORE_REFUSED, *WITH_TOWERS, *TOWERS_REFUSED])
def test_every_row_is_what_an_engine_says_now(name: str) -> None:
    test_a_row_is_what_an_engine_says_now(name)


@pytest.mark.skipif(not IS_OF_THIS, reason=f"the page is of transformers {OF}")
def test_the_page_is_made_of_its_rows() -> None:
    """The rows are read off the page; everything else on it, and their order, is made again from them."""
    lines = {line.removeprefix("| ").split(" | ")[0]: line for line in PAGE.read_text().splitlines()}
    refused = {*sections()[1]}
    assert page(lambda name: (lines[name] not in refused, lines[name])) == PAGE.read_text()
