"""Methods have handlers, and hooks have names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch

from djinn_jupyter import extensions
from djinn_jupyter.engine.loop.intake import extents
from djinn_jupyter.engine.requests import handlers as registry
from djinn_jupyter.engine.requests.handlers import MethodParts, RequestHandlers, handlers_of_methods
from djinn_jupyter.errors import DjinnError, UnknownSite
from djinn_jupyter.methods.sweep.engine import sweep
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom, Scale
from tests.engine.cases import KINDS
from tests.engine.desk import ME, Desk, desk_of, tokens
from tests.strangers import add_stranger, forget
from tests.wire import values

REQUEST: Final = """
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest

class ZetaRead(ReplyBase):
    number: int

class ReadZeta(SessionRequest[ZetaRead], shared="read", changes=False):
    layer: int = 0
"""
ENGINE: Final = """
from djinn_jupyter.engine.requests.handlers import handles
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
    monkeypatch.setattr(registry, "methods", lambda: [one for one in extensions.methods() if not one.is_ours])
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


ANSWERED_BEFORE = {  # by the client table, a worker or the service
    *(ask.Hello, ask.Goodbye, ask.Ping, ask.Listen, ask.Unlisten, ask.ReadStatistics, ask.ListSessions, ask.Shutdown),
    *(ask.ListModules, ask.Tokenize, ask.Detokenize, ask.ListCheckpoints, ask.DropCheckpoint),
    *(ask.ReadPiece, ask.DropPieces, ask.PutPiece, ask.Assemble),
}


def test_every_request_has_a_handler_or_is_answered_before_any(llama: Desk) -> None:
    assert llama.engine.handlers.requests == {*kinds.known().requests} - ANSWERED_BEFORE


NO_POINT, MEANT = "blocks.2.attn.hook_q", {"blocks.2.hook_mlp_out": "mlp_out_post.2"}
NAMED_SITES = {"site", "sites", "at", "halts", "receivers"}
FIELDS = [
    (kind, field.name)
    for kind in KINDS
    for field in msgspec.structs.fields(kind)
    if field.name in NAMED_SITES and kind is not ask.AddModule  # tests/engine/added/test_processed_weights.py
]


def stopped(family: str) -> Iterator[Desk]:
    desk = desk_of(family)
    desk.open("a")
    desk.stop_at("mlp_out_post.2" if family == "gemma2" else "resid_pre.2")
    desk.run(tokens(5))
    yield desk
    desk.close_all()


@pytest.fixture
def qwen() -> Iterator[Desk]:
    yield from stopped("qwen3")


@pytest.fixture
def gemma() -> Iterator[Desk]:
    yield from stopped("gemma2")


def refusals(desk: Desk, kind: type, given: dict[str, Any]) -> Iterator[str]:
    """Yield the errors of the ordinary requests of a kind with these fields, of a stopped and of an empty session."""
    for fields in values.requests(kind, "ordinary"):
        for session in ("a", desk.open("empty")):
            try:
                desk.ask(kind(**{**fields, "session": session, **given}))
            except DjinnError as error:
                yield str(error)


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda one: getattr(one, "__name__", one))
def test_whatever_names_a_site_refuses_a_hook_whose_value_no_point_has(qwen: Desk, kind: type, field: str) -> None:
    several = field in ("sites", "halts", "receivers")
    given: dict[str, Any] = {field: (NO_POINT,) if several else NO_POINT}
    if kind is ask.Fork:
        given |= {"edit": Scale(factor=2.0), "name": "twin"}
    assert any(f"{NO_POINT} of TransformerLens is before a norm" in one for one in refusals(qwen, kind, given))


def test_so_does_a_patch(qwen: Desk) -> None:
    with pytest.raises(UnknownSite, match=r"is before a norm of this model, and q\.2 is behind it"):
        qwen.edit(PatchFrom(session="a", site=NO_POINT))


@pytest.mark.parametrize("named", MEANT)
def test_a_name_is_the_point_that_has_its_value_in_this_model(gemma: Desk, named: str) -> None:
    meant = MEANT[named]
    assert torch.equal(gemma.value(named), gemma.value(meant))
    assert gemma.edit(site=f"{named}[3]").site == f"{meant}[3]"
    assert gemma.ask(ask.Watch(session="a", site=named)).watch.site == meant
    assert gemma.ask(ask.Unwatch(session="a", site=f" {named} ")).count == 1
    assert gemma.steer(f"{named} [1:3]").rule.site == f"{meant}[1,2]"
    assert gemma.ask(ask.ClearBreakpoints(session="a", sites=(named,))).count == 1
