"""Magics that switch rules and edits, share sessions and close them; what is another notebook's needs force."""

from __future__ import annotations

import pytest

from djinn_jupyter.wire import edits, requests
from tests.magics.conftest import Notebook, last
from tests.widgets import samples


def test_a_rule_or_an_edit_is_turned_off_and_on_by_its_number(notebook: Notebook) -> None:
    notebook.cell("%djinn_steer 4 scale 2")
    assert notebook.cell("%djinn_steer --off 1 -o rule").startswith("rule 1 is off")
    assert "(off)" in notebook.cell("%djinn_steer")
    rule = notebook.shell.user_ns["rule"]
    rule.on()
    assert rule.enabled
    assert last(notebook, requests.EnableRule) == requests.EnableRule(session=rule.session.name, number=1, enabled=True)
    assert "(off)" not in notebook.cell("%djinn_steer")
    notebook.cell("%djinn_break 4\n%djinn_run The capital of France is\n%djinn_edit scale 2")
    assert "off: edit 1: an edit" in notebook.cell("%djinn_edit --off 1")
    assert "turned off" in notebook.html()
    assert "off: edit 1" not in notebook.cell("%djinn_edit --on 1")


def test_a_fork_has_its_keys_or_values_edited(notebook: Notebook) -> None:
    notebook.cell("%djinn_run The capital of France is")
    said = notebook.cell("%djinn_fork other scale 3 --site v.5[0] --positions 2:4")
    assert said.startswith("other forked from paris, with scale 3 at v.5[0] in its cache")
    asked = last(notebook, requests.Fork)
    assert (asked.edit, asked.site, asked.positions) == (edits.Scale(factor=3.0), "v.5[0]", (2, 3))
    assert "belong to an edit" in notebook.fails("%djinn_fork third --positions 2")


def test_a_session_is_not_made_again_and_is_shared_with_a_person(notebook: Notebook) -> None:
    assert notebook.cell("%djinn_use maps --new") == "maps is in use\n"
    notebook.cell("%djinn_run The capital of France is")
    assert notebook.cell("%djinn_use maps --new") == "maps is in use; it was there already (idle)\n"
    assert notebook.cell("%djinn_use maps") == "maps is in use\n"
    notebook.cell("%djinn_use maps --new")
    assert "maps is shared with bert, to write, as '" in notebook.cell("%djinn_share --with bert --write")
    assert last(notebook, requests.Share) == requests.Share(session="maps", person="bert", access="write")
    assert "bert (write)" in notebook.cell("%djinn_sessions")
    assert notebook.cell("%djinn_share maps --with bert --none") == "maps is not shared with bert\n"
    assert "shared with" not in notebook.cell("%djinn_sessions")
    assert "Say one of --read, --write and --none." in notebook.fails("%djinn_share --with bert --read --none")


def test_a_session_chooses_its_attention_and_the_list_shows_it(notebook: Notebook) -> None:
    assert notebook.cell("%djinn_use maps --new --attention eager") == "maps is in use\n"
    assert last(notebook, requests.SetAttention) == requests.SetAttention(session="maps", attention="eager")
    assert "idle, eager" in notebook.cell("%djinn_sessions")
    assert "eagre" in notebook.fails("%djinn_use maps --attention eagre")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%djinn_steer 4 scale 2 --on always", "--on takes prompt or new, the passes of a rule, or the number"),
        ("%djinn_steer --off 7", "no steering rule 7"),
        ("%djinn_steer --off 1 --on 1", "Give --on or --off, not both."),
        ("%djinn_steer 4 scale 2 --off 1", "--on and --off stand alone"),
        ("%djinn_edit scale 2 --off 1", "--on and --off stand alone"),
        ("%djinn_edit --revert --off 1", "--on and --off stand alone"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(notebook: Notebook, line: str, said: str) -> None:
    notebook.cell("%djinn_steer 4 scale 2")
    assert said in notebook.fails(line)


def test_the_tree_is_drawn_with_the_session_in_use(notebook: Notebook) -> None:
    assert notebook.cell("%djinn_tree -o branches").splitlines() == [
        "stops and forks",
        "paris (in use): idle, 8 tokens",
        "    stop 1: resid_post.2, step 0",
        "    stop 2: resid_post.4, step 0",
        "  zeroed: paused, 5 tokens, forked from paris after its stop 1",
        "      stop 2: z.3[1], step 0, edited",
        "    \u25b8 stop 3: resid_post.6, step 0",
        "orphan: running, 9 tokens, forked from closed, which is gone",
    ]
    assert notebook.html().count("data:image/svg+xml") == 1
    assert len(notebook.shell.user_ns["branches"]) == 3


PARIS, ROME = "work/paris.ipynb", "work/rome.ipynb"
ANOTHERS = "Session 'rome' belongs to the notebook work/rome.ipynb; to"
OSLO = "Session 'oslo' is open in the notebook work/oslo.ipynb; to"
FORCE = "all the same, add --force (in Python force=True), or work on a fork of it (%djinn_fork)."


@pytest.fixture
def beside(notebook: Notebook) -> Notebook:
    """Add another notebook's session that no client holds, as after the end of its engine, and one that is open."""
    notebook.engine.sessions[ROME] = samples.session(ROME, holder=None, notebook=ROME)
    notebook.engine.sessions["oslo"] = samples.session("oslo", holder="kernel-2", notebook="work/oslo.ipynb")
    notebook.engine.stops["oslo"] = None
    notebook.engine.stops[ROME] = None
    notebook.cell("%djinn_break 4\n%djinn_run The capital of France is\n%djinn_checkpoint noon")
    return notebook


def test_another_notebooks_session_is_closed_with_force_only(beside: Notebook) -> None:
    assert beside.fails("%djinn_close rome") == f"{ANOTHERS} close it {FORCE}"
    assert beside.fails("%djinn_close oslo") == f"{OSLO} close it {FORCE}"
    assert {ROME, "oslo"} < set(beside.engine.sessions)
    beside.cell("%djinn_use rome")
    assert beside.fails("%djinn_close") == f"{ANOTHERS} close it {FORCE}"
    assert beside.cell("%djinn_close rome --force").startswith("rome closed")
    assert beside.cell("%djinn_close oslo --force").startswith("oslo closed")
    assert set(beside.engine.sessions) == {PARIS}


def test_a_joined_session_is_closed_with_force_only(beside: Notebook) -> None:
    beside.cell("%djinn_use oslo --join")
    assert beside.fails("%djinn_close") == f"{OSLO} close it {FORCE}"
    assert "oslo" in beside.engine.sessions
    assert beside.cell("%djinn_close --force").startswith("oslo closed")


@pytest.mark.parametrize(
    ("line", "deed"),
    [
        ("%djinn_fork work/rome.ipynb --fresh", "close it"),
        ("%djinn_restore noon --as work/rome.ipynb --replace", "restore over it"),
        ("%djinn_restore noon --session rome", "restore over it"),
        ("%djinn_load demo --session work/rome.ipynb --fresh", "forget what it holds"),
    ],
)
def test_what_would_take_its_place_needs_force_too(beside: Notebook, line: str, deed: str) -> None:
    before = beside.engine.sessions[ROME]
    assert beside.fails(line) == f"{ANOTHERS} {deed} {FORCE}"
    assert beside.engine.sessions[ROME].tokens == before.tokens
    beside.cell(f"{line} --force")


def test_what_is_refused_can_be_done_on_a_fork_or_with_force(beside: Notebook) -> None:
    assert "belongs to --fresh" in beside.fails("%djinn_fork oslo --force")
    # The sentence advises it, so another notebook's session is forked without being entered.
    assert beside.cell("%djinn_fork mine --session oslo").startswith("mine forked from oslo")
    assert beside.engine.sessions["oslo"].holder == "kernel-2"
    opened = [one.session for one in beside.engine.channel.requests if isinstance(one, requests.Open)]
    assert "oslo" not in opened
    assert beside.fails("%djinn_restore noon --as oslo --replace") == f"{OSLO} restore over it {FORCE}"
    assert "oslo restored from noon" in beside.cell("%djinn_restore noon --as oslo --replace --force")


def test_a_word_that_fits_two_sessions_names_both_and_an_exact_name_wins(beside: Notebook) -> None:
    beside.engine.sessions["other/rome.ipynb"] = samples.session("other/rome.ipynb", holder=None)
    del beside.engine.sessions["oslo"]
    said = "'rome' may be other/rome or work/rome; write it with its folder."
    assert beside.fails("%djinn_close rome --force") == said
    shown = beside.cell("%djinn_sessions")
    assert "other/rome " in shown
    assert "work/rome " in shown
    assert "work/paris.ipynb" not in shown
    beside.engine.sessions["rome"] = samples.session("rome", holder=None)
    assert beside.cell("%djinn_close rome").startswith("rome closed")
    assert set(beside.engine.sessions) == {PARIS, ROME, "other/rome.ipynb"}


def test_a_fresh_fork_ends_nothing_where_its_name_is_another_ones_label(beside: Notebook) -> None:
    beside.engine.sessions["rome"] = samples.session("rome", holder="kernel-1")
    said = "'rome' is also what work/rome.ipynb is shown by; choose another name for the fork."
    assert beside.fails("%djinn_fork rome --fresh") == said
    assert not any(isinstance(one, requests.Close) for one in beside.engine.channel.requests)


def test_several_sessions_are_closed_by_names_and_patterns(stopped: Notebook) -> None:
    for name in ("rome", "rome 2", "oslo", "bern", "riga"):
        stopped.cell(f"%djinn_fork '{name}'")
    assert stopped.cell("%djinn_close oslo bern") == "oslo, bern closed, 2 pages freed; paris is in use\n"
    assert stopped.cell("%djinn_close rome* riga") == "rome, rome 2, riga closed, 3 pages freed; paris is in use\n"
    assert stopped.fails("%djinn_close rome*") == "No session matches 'rome*'."
    stopped.cell("%djinn_fork riga")
    assert stopped.fails("%djinn_close riga nowhere").startswith("There is no session 'nowhere'. There are: ")
    assert [one.name for one in stopped.state.engine.sessions() if "riga" in one.name] == ["riga"]  # a typo closes none


def test_a_pattern_means_own_sessions_and_with_force_those_of_others(beside: Notebook) -> None:
    said = "No session of this notebook matches 'r*'; add --force (in Python force=True) to close those of others too"
    assert beside.fails("%djinn_close r*") == f"{said}: rome."
    beside.cell("%djinn_fork riga")
    assert beside.cell("%djinn_close r*") == "riga closed, 1 page freed; paris is in use\n"
    assert beside.cell("%djinn_close r* o* --force") == "rome, oslo closed, 2 pages freed; paris is in use\n"


def test_rows_of_a_batch_are_closed_and_told_with_their_session(stopped: Notebook) -> None:
    for name in ("rome", "rome/0", "rome/1", "rome-2", *(f"city {n}" for n in range(10))):
        stopped.cell(f"%djinn_fork '{name}'")
    assert stopped.cell("%djinn_close rome") == "rome with 2 rows closed, 3 pages freed; paris is in use\n"
    assert stopped.cell("%djinn_close rome-2 city*").startswith(
        "rome-2, city 0, city 1, city 2, city 3, city 4, city 5, "
    )
    assert [one.name for one in stopped.state.engine.sessions()] == [PARIS]
