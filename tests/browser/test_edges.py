"""The graph of edges in a notebook and in the sidebar: a click on an edge stops the session there; so does a key."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_lab import write

# Of settings that no other test asks for, so that the engine is this notebook's alone.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 7"
STOP = "%djinn_break 6 --once\n%djinn_run The capital of Italy is"
CLEAN = "clean = 'The capital of France is'"
TALL = [f"# {number}\n" * 40 for number in range(6)]  # that many cells, out of sight from the top, are not drawn
EDGES = "%djinn_edges --from clean --metric \"logit(' Paris') - logit(' Rome')\" --top 16 -o found"
CIRCUIT = "%djinn_circuit found --edges 12"
ON, AGAIN, END = "%djinn_resume --free", "%djinn_run The capital of Italy is", "%djinn_stop --forget --force"
ROW = "embed to v.0[3]"


def test_a_click_on_an_edge_stops_there(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "edges.ipynb", LOAD, STOP, CLEAN, *TALL, EDGES, CIRCUIT, ON, AGAIN, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in (LOAD, STOP, CLEAN, EDGES):
            opened.run_cell(source)
        graph = opened.drawn(".djinn-Output").filter(has_text="edges, EAP").locator(".djinn-Graph")
        expect(graph.get_by_role("status")).to_contain_text("Read from session edges. A click sets a breakpoint")
        edge = graph.locator(".djinn-Way", has_text=ROW)
        edge.locator(".djinn-Way-wide").click(force=True)
        expect(graph.get_by_role("status")).to_contain_text("edges stops at v.0[3] when it next comes there.")
        expect(sidebar.whole.get_by_label("Breakpoint at v.0[3] is on")).to_be_visible()
        read = graph.get_by_role("button", name="Breakpoint at z.0[3], there is one at v.0[3]", exact=True)
        expect(read.locator("circle")).to_have_count(1)
        node = graph.get_by_role("button", name="Breakpoint at mlp_out.4", exact=True)
        node.focus()
        page.keyboard.press("Enter")
        expect(node).to_have_attribute("aria-pressed", "true")
        for title in ("Sessions", "Breakpoints", "Model", "Activation"):
            sidebar.fold(title)
        beside = sidebar.whole.locator(".djinn-Graph")
        expect(beside.locator(".djinn-Way")).to_have_count(16)
        beside.locator(".djinn-Way", has_text=ROW).locator(".djinn-Way-wide").click(force=True)
        expect(sidebar.whole.get_by_label("Breakpoint at v.0[3] is on")).to_have_count(0)
        beside.locator(".djinn-Way", has_text=ROW).locator(".djinn-Way-wide").click(force=True)
        expect(beside.get_by_role("status")).to_contain_text("edges stops at v.0[3] when it next comes there.")
        graph.scroll_into_view_if_needed()
        page.screenshot(path=artifacts / "edges.png")
        opened.use_theme(DARK)
        page.screenshot(path=artifacts / "edges-dark.png")
        sidebar.whole.get_by_role("button", name="Breakpoint at mlp_out.4", exact=True).click()
        expect(node).to_have_attribute("aria-pressed", "false")
        assert sidebar.defects() == []
        opened.run_cell(ON)
        expect(graph.get_by_role("status")).to_contain_text("It has moved on since.")
        opened.run_cell(AGAIN)
        sidebar.fold("Sessions")
        sidebar.stands("edges", "at v.0[3]")
        opened.run_cell(CIRCUIT)
        circuit = opened.drawn(".djinn-Output").filter(has_text="12 of 1,997 kept").locator(".djinn-Graph")
        expect(circuit.locator(".djinn-Way")).to_have_count(12)
        circuit.locator(".djinn-Way", has_text="embed to v.0[2]").locator(".djinn-Way-wide").click(force=True)
        expect(circuit.get_by_role("status")).to_contain_text("edges stops at v.0[2] when it next comes there.")
        circuit.scroll_into_view_if_needed()
        page.screenshot(path=artifacts / "circuit.png")
        expect(beside.locator(".djinn-Way")).to_have_count(12)
        sidebar.whole.get_by_label("Graph", exact=True).select_option(index=1)
        expect(beside.locator(".djinn-Way")).to_have_count(16)
        opened.save()
        opened = LabPage.open(page, lab.address(notebook))
        expect(beside.locator(".djinn-Way")).to_have_count(12)
    opened.run_cell(END)
    assert opened.errors() == []
    expect(graph.get_by_role("status")).to_contain_text("not there now")
