"""Verbs of engines and sessions that methods have: found when they are first used, and then as if written in the
class."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from unittest.mock import create_autospec

import pytest

import djinn_jupyter as dj
from djinn_jupyter import verbs
from djinn_jupyter.api.engine import RemoteEngine

STUB = Path(verbs.__file__).with_suffix(".pyi")
HOLDERS = {verbs.EngineVerbs: dj.RemoteEngine, verbs.SessionVerbs: dj.RemoteSession}


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def names_of(tree: ast.Module) -> dict[str, list[str]]:
    """Return the names that each class of holders has, in their order."""
    classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
    wanted = {kind.__name__: classes[kind.__name__] for kind in HOLDERS}
    return {
        name: [ast.unparse(one.targets[0]) for one in kind.body if isinstance(one, ast.Assign)]
        for name, kind in wanted.items()
    }


def test_the_types_are_of_the_same_verbs() -> None:
    written, typed = (names_of(ast.parse(Path(path).read_text())) for path in (verbs.__file__, STUB))
    assert written == typed
    assert all(written.values())


@pytest.mark.parametrize(("holder", "name"), [(h, n) for h in HOLDERS for n in vars(h) if not n.startswith("_")])
def test_a_verb_is_a_function_whose_first_parameter_is_the_object(holder: type, name: str) -> None:
    function = getattr(HOLDERS[holder], name)
    assert inspect.isfunction(function)
    assert (function.__name__, function) == (name, getattr(HOLDERS[holder], name))
    first = next(iter(inspect.signature(function).parameters.values()))
    assert (first.kind, first.annotation) == (first.POSITIONAL_ONLY, HOLDERS[holder].__name__)


def test_a_handle_imports_no_method() -> None:
    """Until one of its verbs is used. Requests are of the wire."""
    seen = "[m for m in sys.modules if 'jupyter.methods.' in m and '.request' not in m and m.count('.') > 2]"
    handles = "import sys, djinn_jupyter.api.engine, djinn_jupyter.api.session"
    assert in_a_new_process(f"{handles}\nprint({seen})") == "[]"
    used = "djinn_jupyter.api.engine.RemoteEngine.head_scores"
    assert "djinn_jupyter.methods.heads.api" in in_a_new_process(f"{handles}\n{used}\nprint({seen})")


def test_verbs_are_listed_before_they_are_used() -> None:
    listed = "import djinn_jupyter as dj\nprint({'collect', 'loss', 'head_scores'} <= set(dir(dj.RemoteEngine)))"
    assert in_a_new_process(listed) == "True"


def test_a_verb_is_bound_and_refuses_as_a_method_does(engine: RemoteEngine) -> None:
    assert list(inspect.signature(engine.loss).parameters) == ["prompts", "mode", "seed", "adapter"]
    with pytest.raises(
        dj.DjinnError, match=r"^loss takes no argument 'sed'; its arguments are prompts, mode, seed, ad"
    ):
        engine.loss([[5, 6]], sed=1)  # type: ignore[call-arg]


def test_an_unknown_name_is_no_attribute(engine: RemoteEngine) -> None:
    assert not hasattr(engine, "head_score")
    assert not hasattr(engine.session("a"), "_repr_html_")
    with pytest.raises(AttributeError, match=r"^'RemoteEngine' object has no attribute 'head_score'"):
        engine.head_score  # type: ignore[attr-defined]  # noqa: B018


def test_a_subclass_reaches_the_verb_of_its_base_and_a_double_has_it(engine: RemoteEngine) -> None:
    code = """
import djinn_jupyter as dj
class Own(dj.RemoteEngine):
    def loss(self, prompts): return super().loss
print(Own(None).loss([]).__self__.__class__.__name__)
"""
    assert in_a_new_process(code) == "Own"
    double = create_autospec(dj.RemoteEngine)
    double.loss([[5, 6]], seed=1)
    with pytest.raises(TypeError):
        double.loss([[5, 6]], sed=1)
