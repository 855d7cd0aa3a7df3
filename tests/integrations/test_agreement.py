"""One model and one line in plain PyTorch, nnsight, TransformerLens, interp-engine and Djinn: `make peers` installs the
tools."""

from __future__ import annotations

import pytest

from djinn_evaluation.benchmarks import tools
from djinn_evaluation.benchmarks.environments import NotRun, peer_python
from djinn_evaluation.benchmarks.harness import setting

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def there(tool: str) -> bool:
    try:
        return peer_python(tool).exists()
    except NotRun:
        return False


@pytest.mark.skipif(not any(map(there, tools.PEERS)), reason="none of the tools here: make peers")
def test_the_tools_that_are_here_find_the_same_values_and_edited_logits() -> None:
    with setting(quick=True, threads=1, device="cpu") as place:
        result = tools.run_agreement(place)
    by_tool = {figure.name.partition(":")[0]: figure for figure in result.figures}
    assert by_tool.keys() == {"djinn", tools.ON_DJINN, *tools.PEERS}
    for tool, figure in by_tool.items():
        if tool == "djinn" or there(tool.partition(" on ")[0]):
            assert figure.met, figure
        else:
            assert figure.not_run is not None
    assert list(result.checks.values()) == [len(tools.SITES) + 2]


def test_a_tool_that_is_not_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(tool: str) -> None:
        raise NotRun(f"{tool} is not here")

    figure = tools.figure_of("nnsight", lambda: gone("nnsight") or {}, {})
    assert (figure.value, figure.not_run) == (None, "nnsight is not here")
