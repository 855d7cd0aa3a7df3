"""Clicks in a notebook and in the sidebar: on edges, features, rules and stops. Each notebook loads an engine of
settings that no other one asks for, and ends it."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import TIMEOUT, Sidebar, no_complaints
from tests.browser.test_lab import write

# Of settings that no other test asks for, so that the engine is this notebook's alone.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 7"
STOP = "%djinn_break 6 --once\n%djinn_run The capital of Italy is"
CLEAN = "clean = 'The capital of France is'"
TALL = [f"# {number}\n" * 40 for number in range(6)]  # that many cells, out of sight from the top, are not drawn
EDGES = "%djinn_edges --from clean --metric \"logit(' Paris') - logit(' Rome')\" --top 16 -o found"
CIRCUIT = "%djinn_circuit found --edges 12"
ON = "%djinn_resume --free"
AGAIN = "%djinn_run The capital of Italy is"
END = "%djinn_stop --forget --force"
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


LOAD_GRAPHS = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 6"
ADD_TRANSCODERS = "from djinn_jupyter import demo\n%djinn_add_transcoders tc {demo.TRANSCODERS_PATH}"
RUN_GRAPHS = "%djinn_run --max-tokens 0 The capital of France is"
FRANCE = "%djinn_run The capital of France is"
GRAPH = "%djinn_graph tc --metric \"logit(' Paris') - logit(' Rome')\" --top 20"
FEATURE = "tc.2[113]"
FEATURE_STOP = f"{FEATURE} when position == 4"

_OVERLAPS = """graph => {
    const boxes = [...graph.querySelectorAll('g.djinn-Box')].map(node => ({
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
    notebook = write(lab, "graphs.ipynb", LOAD_GRAPHS, ADD_TRANSCODERS, RUN_GRAPHS, GRAPH, FRANCE, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in (LOAD_GRAPHS, ADD_TRANSCODERS, RUN_GRAPHS, GRAPH):
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
        opened.run_cell(FRANCE)
        sidebar.fold("Sessions")
        sidebar.stands("graphs", f"at {FEATURE}")
    opened.run_cell(END)
    assert opened.errors() == []


def feature(graph: Locator) -> Locator:
    """The node of the feature."""
    return graph.get_by_role("button", name=f"Breakpoint at {FEATURE_STOP}", exact=True)


LOAD_FEATURES = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 9"
ADD_SAE = "from djinn_jupyter import demo, load\nsae = load('demo', stops_kept=9).add_module('sae', demo.SAE_PATH)"
RUN_TO_FEATURES = "%djinn_break sae.4 --once\n%djinn_run The capital of France is"


def test_features_of_a_stop_are_broken_at_and_edited_by_a_click(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "features.ipynb", LOAD_FEATURES, ADD_SAE, RUN_TO_FEATURES, ON, FRANCE, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in (LOAD_FEATURES, ADD_SAE, RUN_TO_FEATURES):
            opened.run_cell(source)
        sidebar.stands("features", "at sae.4")
        for title in ("Edges", "Activation"):
            sidebar.fold(title)
        for label in ("Layer 4", "sae"):
            sidebar.row(label).locator(".djinn-Row-caret").click()
        rows = sidebar.whole.locator(".djinn-Row[aria-level='3']")
        expect(rows.first).to_be_visible()
        strongest = rows.first.locator(".djinn-Row-label").inner_text()
        value = rows.first.locator(".djinn-Row-detail").inner_text()
        assert float(value.replace(",", "")) > 0
        rows.first.locator(".djinn-Row-label").click()
        expect(sidebar.whole.get_by_label(f"Breakpoint at sae.4{strongest} is on")).to_be_visible()
        page.screenshot(path=artifacts / "features.png")
        opened.use_theme(DARK)
        page.screenshot(path=artifacts / "features-dark.png")
        assert sidebar.defects() == []
        sidebar.whole.get_by_label(f"Set sae.4{strongest} to zero at all positions").click()
        expect(sidebar.row(strongest).locator(".djinn-Row-detail")).not_to_have_text(value)
        sidebar.fold("Activation")
        expect(sidebar.whole.get_by_label("Edits of this stop")).to_contain_text("zero")
        opened.run_cell(ON)
        opened.run_cell(FRANCE)
        expect(sidebar.whole.locator(".djinn-Breakpoints")).to_contain_text("1 hit")
        sidebar.stands("features", f"at sae.4{strongest}")
        expect(sidebar.row(strongest).locator(".djinn-Row-detail")).to_have_text(value)
    opened.run_cell(END)
    assert opened.errors() == []


LOAD_INFLUENCES = "%load_ext djinn_jupyter\n%djinn_load demo --attention eager --stops-kept 9"
CELLS = (
    LOAD_INFLUENCES,
    "%djinn_break z.4\n%djinn_steer 2 scale 2",
    "%djinn_run --max-tokens 3 The capital of France is",
    "%djinn_edit scale 0.5 --positions -1",
    "%djinn_edit zero --positions 0",
)
MEAN, HEAD = (re.compile(rf"^Values at z\.4 \({which}\)") for which in ("mean of 4 heads", "head 2"))
FORK_OTHER = "%djinn_fork other"


def test_rules_edits_and_heads_of_a_stop(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "influenced.ipynb", *CELLS, FORK_OTHER, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in CELLS:
            opened.run_cell(source)
        edits = sidebar.whole.get_by_label("Edits of this stop").get_by_role("checkbox")
        picture = sidebar.whole.locator(".djinn-Thumbnail canvas")
        expect(edits).to_have_count(2, timeout=TIMEOUT)
        expect(picture).to_have_attribute("aria-label", MEAN, timeout=TIMEOUT)
        page.screenshot(path=artifacts / "sidebar-influences.png")
        edits.nth(1).click()
        expect(sidebar.whole.get_by_label("Edits of this stop")).to_contain_text("off", timeout=TIMEOUT)
        sidebar.whole.locator(".djinn-Heads select").select_option("head 2")
        expect(picture).to_have_attribute("aria-label", HEAD)
        sidebar.whole.get_by_label("The rule at resid_post.2 is on").click()
        rules = sidebar.whole.get_by_label("Steering rules of influenced")
        expect(rules).to_contain_text("off", timeout=TIMEOUT)
        for title in ("Breakpoints", "Model", "Stops and forks"):
            sidebar.fold(title)
        sidebar.press("step")
        sidebar.stands("influenced", "at resid_post.4")
        opened.run_cell(FORK_OTHER)
        sidebar.whole.get_by_label("Show session other").wait_for()
        sidebar.whole.get_by_label(re.compile("^z.4, prompt")).click()
        page.screenshot(path=artifacts / "sidebar-stops.png")
        sidebar.whole.get_by_role("button", name="Take influenced back").click()
        sidebar.stands("influenced", "at z.4")
        sidebar.stands("other", "at resid_post.4")
        opened.use_theme(DARK)
        page.screenshot(path=artifacts / "sidebar-influences-dark.png")
        assert sidebar.defects() == []
    opened.run_cell(END)
    assert opened.errors() == []


LOAD_WHOSE = "%load_ext djinn_jupyter\n%djinn_load demo --attention eager"
BREAK, FORK = "%djinn_break 4", "%djinn_fork a-parked-one"
TO_FRANCE, TO_ITALY = (f"%djinn_run --max-tokens 3 The capital of {country} is" for country in ("France", "Italy"))
RENAME = "async path => { await window.jupyterapp.shell.currentWidget.context.rename(path) }"
RESTART = "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.restartKernel() }"


def test_the_stop_that_is_shown_and_moved_is_the_notebooks(lab: LabServer, page: Page, artifacts: Path) -> None:
    write(lab, "plain.ipynb", "1")
    notebook = write(lab, "whose.ipynb", LOAD_WHOSE, BREAK, TO_FRANCE, TO_ITALY, FORK, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        lens = sidebar.whole.locator(".djinn-Lens")
        for source in (LOAD_WHOSE, BREAK, TO_FRANCE):
            opened.run_cell(source)
        best = lens.locator("tr").first
        expect(best).to_contain_text("Paris")
        opened.run_cell(TO_ITALY)
        expect(best).to_contain_text("Rome")
        page.screenshot(path=artifacts / "sidebar-900.png")
        sidebar.press("step-token")
        expect(sidebar.whole.locator(".djinn-Norms .djinn-token")).to_have_text(["\u00b7Rome"])

        opened.run_cell(FORK)
        sidebar.stands("a-parked-one", "at resid_post.4")
        opened.command("docmanager:open", {"path": "plain.ipynb"})
        expect(page.locator("body")).to_have_attribute("data-djinn-stopped", "false")
        opened.command("docmanager:open", {"path": "whose.ipynb"})
        expect(page.locator("body")).to_have_attribute("data-djinn-stopped", "true")
        expect(sidebar.whole.locator(".djinn-Stop-session")).to_have_text("whose")
        page.keyboard.press("F10")
        sidebar.stands("whose", "at resid_post.5")
        sidebar.stands("a-parked-one", "at resid_post.4")
        for name in ("whose", "a-parked-one"):
            expect(sidebar.session(name)).to_be_in_viewport(ratio=1)
        expect(sidebar.session("whose").locator(".djinn-Session-actions")).to_be_in_viewport(ratio=1)
        page.screenshot(path=artifacts / "sidebar-900-two.png")

        page.evaluate(RENAME, "renamed.ipynb")
        page.keyboard.press("F10")
        sidebar.stands("whose", "at resid_post.6")
        page.evaluate(RESTART)
        opened.wait_for_kernel()
        opened.run_cell(LOAD_WHOSE)
        sidebar.stands("renamed", "idle")
        expect(sidebar.whole.locator(".djinn-Session.djinn-mod-chosen .djinn-Session-label")).to_have_text("renamed")
        expect(sidebar.whole.get_by_text("This notebook was renamed")).to_be_visible()
        page.keyboard.press("F10")
        sidebar.stands("whose", "at resid_post.6")
    opened.run_cell(END)  # notebooks that are tested after it load an engine of this kind with settings of their own
    assert opened.errors() == []
