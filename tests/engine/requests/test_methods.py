"""The engine finds the handlers of methods by the registry. A stranger's that fails is left out, alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from djinn_jupyter import extensions
from djinn_jupyter.engine.loop import dispatch
from djinn_jupyter.engine.loop.dispatch import MethodParts, RequestHandlers, handlers_of_methods
from djinn_jupyter.engine.loop.lines import extents
from djinn_jupyter.methods.sweep.engine import sweep
from djinn_jupyter.methods.sweep.engine.together import Together
from tests.engine.desk import ME, Desk
from tests.strangers import add_stranger, forget

REQUEST: Final = """
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest

class ZetaRead(ReplyBase):
    number: int

class ReadZeta(SessionRequest[ZetaRead], shared="read", changes=False):
    layer: int = 0
"""
ENGINE: Final = """
from djinn_jupyter.engine.loop.dispatch import handles
from djinn_jupyter.wire.weights import SwapIn
from djinn_zeta.request import ReadZeta, ZetaRead

def handlers(parts):
    return [Zeta(parts)]

class Zeta:
    def __init__(self, parts):
        self.parts = parts

    @handles(ReadZeta)
    def read(self, request, *_):
        return ZetaRead(number=request.layer + self.parts.runtime.forward.layers)
"""


@pytest.fixture
def parts(llama: Desk) -> MethodParts:
    engine = llama.engine
    return MethodParts(
        sessions=engine.sessions,
        runtime=engine.runtime,
        budget=engine.budget,
        identity=engine.persistence.identity,
        files=engine.persistence.file_worker,
        until_done=lambda work: iter(()),  # type: ignore[arg-type, return-value]
        extents=extents(None),
    )


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the package of a stranger's method, zeta, without its engine; only strangers' methods are there."""
    monkeypatch.syspath_prepend(tmp_path)
    loaded = set(sys.modules)
    add_stranger(tmp_path, "zeta", "djinn_zeta", {"request": REQUEST})
    forget()
    monkeypatch.setattr(dispatch, "methods", lambda: [one for one in extensions.methods() if not one.is_ours])
    yield tmp_path / "djinn_zeta"
    for name in set(sys.modules) - loaded:
        del sys.modules[name]
    monkeypatch.undo()
    forget()


STEPS: Final = """
    def read(self, request, *_):
        yield
        """
AT_ONCE: Final = """
    def read(self, request, *_):
        """
RETURNED: Final = "return ZetaRead(number=request.layer + self.parts.runtime.forward.layers)"


@pytest.mark.parametrize("form", [AT_ONCE, STEPS], ids=["at once", "steps"])
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise SystemExit('enough')", "SystemExit: enough"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("return None", "the handler of ReadZeta returned NoneType"),
        ("return Pong()", "the handler of ReadZeta returned Pong"),
    ],
)
def test_a_handler_that_ends_otherwise_ends_its_request_alone(
    llama: Desk, parts: MethodParts, package: Path, form: str, end: str, said: str
) -> None:
    text = ENGINE.replace(AT_ONCE + RETURNED, form + end)
    assert text != ENGINE
    (package / "engine.py").write_text(f"from djinn_jupyter.wire.greeting import Pong\n{text}")
    llama.open("main")
    handlers = RequestHandlers(parts.sessions, *handlers_of_methods(parts))
    request = sys.modules["djinn_zeta.request"].ReadZeta(session="main")
    with pytest.raises((RuntimeError, TypeError), match=said):
        for _ in handlers.answer(request, ME):  # type: ignore[union-attr]
            pass


@pytest.mark.parametrize("module", ["engine.py", "engine/handlers.py"])
def test_a_method_hands_over_what_handles_its_requests(parts: MethodParts, package: Path, module: str) -> None:
    (package / module).parent.mkdir(exist_ok=True)
    (package / module).write_text(ENGINE)
    [zeta] = handlers_of_methods(parts)
    request = sys.modules["djinn_zeta.request"].ReadZeta(session="main", layer=5)
    assert zeta.read(request).number == 5 + parts.runtime.forward.layers  # type: ignore[attr-defined]


def test_a_method_without_requests_needs_no_handlers(parts: MethodParts, package: Path) -> None:
    (package / "engine").mkdir()
    (package / "engine" / "sums.py").write_text("")
    (package / "engine" / "__init__.py").write_text("")
    assert [*handlers_of_methods(parts)] == []
    assert extensions.troubles() == {}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("def handlers", "def handler", "AttributeError: module 'djinn_zeta.engine' has no attribute 'handlers'"),
        ("return [Zeta(parts)]", "raise OSError('no such file\\nor folder')", "OSError: no such file"),
        ("return [Zeta(parts)]", "raise SystemExit('enough')", "SystemExit: enough"),
        ("return [Zeta(parts)]", "return [Zeta(parts), Zeta(parts)]", "TypeError: ReadZeta has two handlers."),
        ("@handles(ReadZeta)", "@handles(SwapIn)", "TypeError: SwapIn is no request of its own"),
    ],
)
def test_a_method_that_fails_is_left_out_alone(
    parts: MethodParts, package: Path, tmp_path: Path, old: str, new: str, why: str
) -> None:
    (package / "engine.py").write_text(ENGINE.replace(old, new))
    other = {"request": REQUEST, "engine": ENGINE.replace("djinn_zeta", "djinn_zita")}
    add_stranger(tmp_path, "zita", "djinn_zita", other)
    forget()
    assert [type(one).__module__ for one in handlers_of_methods(parts)] == ["djinn_zita.engine"]
    [(left_out, said)] = extensions.troubles().items()
    assert left_out.name == "zeta"
    assert f"its engine fails ({why}): mend or uninstall it" in said


@pytest.mark.usefixtures("package")
def test_a_way_to_sweep_goes_with_the_method_that_is_left_out(
    parts: MethodParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ByZeta(sweep.SweepWay): ...

    def kinds() -> list[type[sweep.SweepWay]]:
        return [type(way) for way in sweep.every_way(Together(parts.runtime))]

    ByZeta.__module__ = "djinn_zeta.engine"
    before = kinds()
    monkeypatch.setattr(sweep, "_OTHERS", [*sweep._OTHERS])
    sweep.way_to_sweep(ByZeta)
    assert kinds() == [*before[:-1], ByZeta, before[-1]]
    (zeta,) = (method for method in extensions.installed() if method.name == "zeta")
    extensions.leave_out(zeta, "it fails")
    assert kinds() == before
