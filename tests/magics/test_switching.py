"""Rules and edits are switched by their numbers, and the tree of stops is drawn."""

from __future__ import annotations

import pytest

from djinn_jupyter.wire import edits, requests
from tests.magics.conftest import Notebook, last


def test_a_rule_is_turned_off_and_on_by_its_number(notebook: Notebook) -> None:
    notebook.cell("%djinn_steer 4 scale 2")
    assert notebook.cell("%djinn_steer --off 1 -o rule").startswith("rule 1 is off")
    assert "(off)" in notebook.cell("%djinn_steer")
    rule = notebook.shell.user_ns["rule"]
    rule.on()
    assert rule.enabled
    assert last(notebook, requests.EnableRule) == requests.EnableRule(session=rule.session.name, number=1, enabled=True)
    assert "(off)" not in notebook.cell("%djinn_steer")


def test_an_edit_of_the_stop_is_turned_off_and_the_stop_drawn_with_it(notebook: Notebook) -> None:
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


def test_a_session_is_shared_with_a_person_and_the_list_shows_it(notebook: Notebook) -> None:
    notebook.cell("%djinn_use maps --new")
    assert "maps is shared with bert, to write, as '" in notebook.cell("%djinn_share --with bert --write")
    assert last(notebook, requests.Share) == requests.Share(session="maps", person="bert", access="write")
    assert "bert (write)" in notebook.cell("%djinn_sessions")
    assert notebook.cell("%djinn_share maps --with bert --none") == "maps is not shared with bert\n"
    assert "shared with" not in notebook.cell("%djinn_sessions")
    assert "Say one of --read, --write and --none." in notebook.fails("%djinn_share --with bert --read --none")


def test_a_session_of_that_name_that_is_there_is_not_made_again_and_the_line_says_so(notebook: Notebook) -> None:
    assert notebook.cell("%djinn_use maps --new") == "maps is in use\n"
    notebook.cell("%djinn_run The capital of France is")
    assert notebook.cell("%djinn_use maps --new") == "maps is in use; it was there already (idle)\n"
    assert notebook.cell("%djinn_use maps") == "maps is in use\n"


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
