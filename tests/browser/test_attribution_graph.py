"""An attribution graph in notebook and sidebar: a click on a feature or an edge stops there, at its position."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_lab import write

# Of settings that no other test asks for, so that the engine is this notebook's alone.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 6"
ADD = "from djinn_jupyter import demo\n%djinn_add_transcoders tc {demo.TRANSCODERS_PATH}"
RUN, AGAIN = "%djinn_run --max-tokens 0 The capital of France is", "%djinn_run The capital of France is"
GRAPH = "%djinn_graph tc --metric \"logit(' Paris') - logit(' Rome')\" --top 20"
END = "%djinn_stop --forget --force"
FEATURE = "tc.2[113]"
STOP = f"{FEATURE} when position == 4"

_OVERLAPS = """graph => {
    const boxes = [...graph.querySelectorAll('.djinn-Box')].map(node => ({
        name: node.getAttribute('aria-label'),
        box: node.querySelector('rect').getBoundingClientRect(),
        text: node.querySelector('text:last-of-type').getBoundingClientRect(),
    }));
    const out = boxes.filter(({ box, text }) => text.left < box.left || text.right > box.right);
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const met = boxes.filter(({ box }, n) => boxes.some((other, m) => m > n && meet(box, other.box)));
    return [...out.map(one => `sticks out: ${one.name}`), ...met.map(one => `meets another: ${one.name}`)];
}"""


def test_a_click_on_a_feature_or_an_edge_stops_at_its_position(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "graphs.ipynb", LOAD, ADD, RUN, GRAPH, AGAIN, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in (LOAD, ADD, RUN, GRAPH):
            opened.run_cell(source)
        graph = opened.drawn(".djinn-Output").filter(has_text="attribution graph").locator(".djinn-Graph")
        expect(graph.locator(".djinn-Way")).to_have_count(20)
        expect(graph.get_by_role("status")).to_contain_text("Read from session graphs. A click sets a breakpoint")
        node = feature(graph)
        expect(node).to_contain_text("L2 #113 @4")
        node.click(force=True)
        expect(node).to_have_attribute("aria-pressed", "true")
        expect(sidebar.whole.get_by_label(f"Breakpoint at {FEATURE} is on")).to_be_visible()
        expect(sidebar.whole.locator(".djinn-Breakpoints")).to_contain_text("when position == 4")
        for title in ("Sessions", "Breakpoints", "Model", "Activation"):
            sidebar.fold(title)
        beside = sidebar.whole.locator(".djinn-Graph")
        expect(feature(beside)).to_have_attribute("aria-pressed", "true")
        graph.scroll_into_view_if_needed()
        assert graph.evaluate(_OVERLAPS) == []
        page.screenshot(path=artifacts / "attribution.png")
        opened.use_theme(DARK)
        page.screenshot(path=artifacts / "attribution-dark.png")
        feature(beside).click(force=True)
        expect(node).to_have_attribute("aria-pressed", "false")
        edge = graph.locator(".djinn-Way", has_text=f"to {FEATURE} @4").first
        edge.locator(".djinn-Way-wide").dispatch_event("click")
        expect(node).to_have_attribute("aria-pressed", "true")
        opened.run_cell(AGAIN)
        sidebar.fold("Sessions")
        sidebar.stands("graphs", f"at {FEATURE}")
    opened.run_cell(END)
    assert opened.errors() == []


def feature(graph: Locator) -> Locator:
    """The node of the feature."""
    return graph.get_by_role("button", name=f"Breakpoint at {STOP}", exact=True)
