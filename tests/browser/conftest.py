"""JupyterLab and Chromium for the tests of this folder, and a place for their pictures."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import chromium
from tests.browser.lab_page import HEIGHT, WIDTH
from tests.browser.lab_server import LabServer, lab_server

PATIENCE_MILLISECONDS = 180_000  # every wait ends with its event; this is for those that never come
expect.set_options(timeout=PATIENCE_MILLISECONDS)  # or it is 5 s, whatever the page's is
ARTIFACTS = Path(__file__).parents[1] / "artifacts"
_FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.processes)
            item.add_marker(pytest.mark.timeout(900))  # several kernel starts in one test, maybe on a busy machine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser, artifacts: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of a fresh browser profile; when its test fails, a picture of the page is kept."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    shown = context.new_page()
    yield shown
    if request.node.stash.get(_FAILED, False):
        shown.screenshot(path=artifacts / f"failed-{request.node.name}.png")
    context.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    place = tmp_path_factory.mktemp("lab")
    (place / "notebooks").mkdir()
    with lab_server(place / "notebooks", log=place / "lab.log") as server:
        yield server


@pytest.fixture
def kernelless_lab(lab: LabServer) -> Iterator[LabServer]:
    """The same folder, trust and settings, on a machine that has no kernel."""
    with lab_server(lab.folder, log=lab.folder.parent / "kernelless.log", kernels=False) as server:
        yield server


@pytest.fixture(scope="session")
def artifacts() -> Path:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    return ARTIFACTS
