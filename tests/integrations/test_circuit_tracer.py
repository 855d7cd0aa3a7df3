"""The fields that circuit-tracer's own code reads of its config.yaml are in our table. `make peers` installs it without
what it needs to run, which is another transformers than ours."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from djinn_jupyter.modules.files.circuit_tracer import CONFIG, KINDS

SPEC = find_spec("circuit_tracer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(SPEC is None, reason="no circuit-tracer here: make peers")]
READ = re.compile(r"""\bconfig(?:\.get\(|\[)["'](\w+)["']""")


def test_every_field_that_circuit_tracer_reads_is_in_the_table() -> None:
    assert SPEC.origin is not None
    folder = Path(SPEC.origin).parent
    loading = "\n".join((folder / "utils" / name).read_text(encoding="utf-8") for name in ("hf_utils.py", "caching.py"))
    named = set(READ.findall(loading))
    assert {"model_kind", "feature_input_hook", "feature_output_hook", "transcoders"} <= named
    assert not CONFIG.unknown(named)
    assert all(f'"{kind}"' in loading for kind in KINDS)
