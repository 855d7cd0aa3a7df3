"""The magics, each line as a person types it, on an engine double."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook, last
from tests.widgets import samples
from tests.widgets.swept import with_values

# ---------------------------------------------------------------------------------------------------- the engine


def test_load_says_what_was_loaded_and_what_is_still_armed(bare: Notebook, notebook: Notebook) -> None:
    said = bare.cell("%djinn_load demo")
    assert "demo: LlamaForCausalLM, 8 layers, 256 wide, 1,024 positions" in said
    assert "session paris: nothing armed" in said
    notebook.cell("%djinn_break 4\n%djinn_run The capital of France is")
    said = notebook.cell("%djinn_load demo")
    assert "1 breakpoint (resid_post.4), stopped at resid_post.4, step 0, 5 tokens" in said
    notebook.cell("%djinn_break 4")
    assert "nothing armed" in notebook.cell("%djinn_load demo --fresh")


def test_where_there_is_no_sidebar_the_first_load_names_the_magics(
    bare: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DJINN_STATIC")
    assert "No sidebar here" not in bare.cell("%djinn_load demo")
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    bare.state._told_of_sidebar = False
    said = bare.cell("%djinn_load demo")
    assert said.count("No sidebar here. %djinn_sessions") == 1
    assert "No sidebar here. %djinn_sessions" in bare.html()
    assert "No sidebar here" not in bare.cell("%djinn_load demo")


def test_load_hands_its_options_on_and_leaves_the_rest_to_the_client(bare: Notebook) -> None:
    bare.cell('%djinn_load demo --dtype bfloat16 --device cpu --device-memory "2 GiB" --host-memory 0 -o engine')
    expected = {"dtype": "bfloat16", "device": "cpu", "device_memory": "2 GiB", "host_memory": "0"}
    assert bare.client.loaded == [expected]
    assert repr(bare.shell.user_ns["engine"]).startswith("Engine demo")


def test_load_hands_on_where_the_engine_is_and_by_which_key(bare: Notebook) -> None:
    bare.cell("%djinn_load demo --at gpu-box:5557 --key anna --session main -o engine")
    assert bare.client.loaded == [{"at": "gpu-box:5557", "key": "anna"}]


def test_unload_lets_go_and_the_session_stays(notebook: Notebook) -> None:
    assert "unloaded" in notebook.cell("%djinn_unload")
    assert notebook.engine.sessions["work/paris.ipynb"].holder is None
    assert "No model is loaded" in notebook.fails("%djinn_status")


def test_stop_names_what_ends_with_it(notebook: Notebook) -> None:
    assert notebook.cell("%djinn_stop").strip() == "engine of demo stopped; ended with it: paris"
    assert "No model is loaded" in notebook.fails("%djinn_run x")


def test_status_shows_the_books_without_clock_and_process_number(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_status -o statistics")
    assert "30 passes, 240 layers run, 24 tokens sampled" in said
    assert "4242" not in said + notebook.html()
    assert "12.5" not in said + notebook.html()
    assert notebook.shell.user_ns["statistics"].passes == 30
    assert notebook.fails("%djinn_log") == "This engine writes no log file."


# -------------------------------------------------------------------------------------------------- breakpoints


def test_a_breakpoint_is_turned_off_and_on(notebook: Notebook) -> None:
    notebook.cell("%djinn_break 4")
    assert notebook.cell("%djinn_breaks --off 1 -o point") == "breakpoint 1 is off: resid_post.4\n"
    assert not notebook.shell.user_ns["point"].enabled
    assert "disabled" in notebook.cell("%djinn_breaks")
    assert notebook.cell("%djinn_breaks --on 1") == "breakpoint 1 is on: resid_post.4\n"
    assert "no breakpoint 2" in notebook.fails("%djinn_breaks --on 2")
    assert "not both" in notebook.fails("%djinn_breaks --on 1 --off 1")


def test_a_run_of_another_notebook_is_paused_without_opening_its_session(notebook: Notebook) -> None:
    notebook.engine.sessions["theirs"] = msgspec.structs.replace(samples.session("theirs"), holder="kernel-2")
    assert notebook.cell("%djinn_pause theirs") == "nothing runs in session theirs\n"
    notebook.engine._change("theirs", state="running")
    assert notebook.cell("%djinn_pause theirs") == "session theirs stops at its next layer\n"
    assert last(notebook, requests.Pause).session == "theirs"
    assert notebook.engine.sessions["theirs"].holder == "kernel-2"
    assert notebook.cell("%djinn_pause") == "nothing runs in session paris\n"


def test_a_bare_number_is_the_output_of_that_layer_and_one_breakpoint(notebook: Notebook) -> None:
    assert notebook.cell("%djinn_break 4 -o point") == "breakpoint 1 at resid_post.4, the output of layer 4\n"
    assert notebook.shell.user_ns["point"].site == "resid_post.4"
    notebook.cell("%djinn_break 4")
    assert notebook.cell("%djinn_break resid_post.4").endswith("(already set)\n")
    assert notebook.fails("%djinn_break 20") == "There is no layer 20: this model has layers 0 to 7."
    for typed, meant in [
        ('--when "step == 0"', "step == 0"),
        ("--when step == 0", "step == 0"),
        ('--when token == " Paris" --once', 'token == " Paris"'),
        ("--when norm > -1", "norm > -1"),
    ]:
        notebook.cell(f"%djinn_break 4 {typed}")
        request = last(notebook, requests.SetBreakpoint)
        assert (request.when, request.once) == (meant, "--once" in typed)


def test_breaks_lists_and_clear_clears(notebook: Notebook) -> None:
    assert notebook.cell("%djinn_breaks") == "no breakpoints"
    notebook.cell("%djinn_break 4\n%djinn_break z.3[1] --when step == 0")
    assert "z.3[1]" in notebook.cell("%djinn_breaks")
    assert notebook.cell("%djinn_clear z.3[1]") == "1 breakpoint cleared\n"
    assert notebook.cell("%djinn_clear") == "1 breakpoint cleared\n"


# ------------------------------------------------------------------------------------------------------- moving


def test_run_to_the_end_shows_the_text_and_what_its_last_token_was_chosen_from(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_run -o done The capital of France is")
    assert "The capital of France is| Paris. The" in said
    assert "last new token: ' Paris' 62 %" in said
    assert isinstance(notebook.shell.user_ns["done"], Finished)
    notebook.cell("ids = [5, 6, 7]")
    notebook.cell("%djinn_run --ids ids --temperature 0.7 --seed 3 --top-k 10 --free --stop '. ' --stop x")
    request = last(notebook, requests.Run)
    assert (request.tokens, request.sampling.temperature, request.sampling.seed) == ((5, 6, 7), 0.7, 3)
    assert (request.stop, request.free) == ((". ", "x"), True)
    notebook.cell("%djinn_run --continue")
    request = last(notebook, requests.Run)
    assert (request.extend, request.text, request.tokens) == (True, None, None)


def test_run_to_a_breakpoint_shows_where_it_stands(notebook: Notebook) -> None:
    notebook.cell("%djinn_break 4")
    said = notebook.cell("%djinn_run The capital of France is\n")
    assert said.startswith(
        "paused at resid_post.4 (step 0, the prompt; 5 of 8 layers run; breakpoint 1, hit 0; session paris)"
    )
    assert "logit lens" in said
    assert "activation at resid_post.4" in notebook.html()
    notebook.cell("%djinn_break 4")
    assert "next token: ' Paris' 93 %" in notebook.cell("%djinn_run --effect The capital of France is")


def test_resume_step_and_back(notebook: Notebook) -> None:
    notebook.cell("%djinn_break 4\n%djinn_run The capital of France is")
    assert "paused at resid_post.6" in notebook.cell("%djinn_step 2 -o stop")
    assert isinstance(notebook.shell.user_ns["stop"], Paused)
    notebook.cell("%djinn_step --point")
    assert last(notebook, requests.Step).by == "point"
    assert "gone back" in notebook.cell("%djinn_back")
    notebook.cell("%djinn_step --point")
    assert last(notebook, requests.Step).by == "point"
    notebook.cell("%djinn_back 2 --layer")
    assert (last(notebook, requests.Back).count, last(notebook, requests.Back).by) == (2, "layer")
    assert "1     resid_post.4  0     breakpoint" in notebook.cell("%djinn_back --list")
    assert "finished: 3 new tokens" in notebook.cell("%djinn_resume --free")
    assert last(notebook, requests.Resume).free


def test_an_interrupt_leaves_the_session_stopped_and_says_where(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_in(*_: Any) -> None:
        raise KeyboardInterrupt

    notebook.cell("%djinn_break 4")
    monkeypatch.setattr("djinn_jupyter.link.channel.Following.events", break_in)
    line = notebook.fails("%djinn_run The capital of France is")
    assert line == "Interrupted. Session paris is stopped at resid_post.4, step 0; %djinn_resume goes on."
    assert "Paused at" in notebook.html()


# ------------------------------------------------------------------------------------------ looking and changing


def test_inspect_and_lens_show_and_keep_what_they_read(stopped: Notebook) -> None:
    said = stopped.cell("%djinn_inspect mlp_out.2 --positions -3,-1 -o seen")
    assert said.startswith("mlp_out.2: float32 [2, 256] (T D), positions 2, 4, exact")
    assert stopped.shell.user_ns["seen"].value.shape == (2, 256)
    said = stopped.cell("%djinn_inspect pattern.2")
    assert "where position 4 looks" in said
    assert said.count("'The' 20 %") == 8
    assert stopped.cell("%djinn_lens -k 2 --positions -1").count("%") == 2
    said = stopped.cell("%djinn_lens --layers -o grid")
    assert [line.split()[0] for line in said.splitlines()[2:7]] == [f"resid_post.{i}" for i in range(5)]
    assert list(stopped.shell.user_ns["grid"]) == [f"resid_post.{i}" for i in range(5)]
    said = stopped.cell("%djinn_lens --layers")
    assert "probability at position 4 by layer" in said
    assert len(last(stopped, requests.Lens).tokens) == 3
    said = stopped.cell('%djinn_lens --layers --token " Paris" --token " <b>"')
    assert last(stopped, requests.Lens).tokens == (" Paris", " <b>")
    assert said.splitlines()[-6].split("  ") == ["layer", "' Paris'", "' <b>'"]
    assert "%3Cpolyline" in stopped.html()


def test_a_diff_by_layer_compares_both_passes_below_their_stops(stopped: Notebook) -> None:
    stopped.cell("%djinn_fork rome\n%djinn_step --session rome")
    said = stopped.cell("%djinn_diff rome --layers -o layers")
    assert "relative distance by layer and position" in said
    assert list(stopped.shell.user_ns["layers"]) == [f"resid_post.{i}" for i in range(5)]


def test_watch_along_a_direction_names_it_by_the_expression(stopped: Notebook) -> None:
    stopped.cell("v = [1.0] * 128")
    assert "watching resid_post.4 along v at every pass" in stopped.cell("%djinn_watch 4 --direction v")
    assert "%djinn_watch resid_post.4 --direction v --show shows it" in stopped.cell("%djinn_watch 4 --direction v")
    kept = stopped.cell("%djinn_watch resid_post.4 --direction v -o told")
    assert "; told describes the watch, and with --show it has the values" in kept
    assert "watching resid_post.4 along v: 0 passes recorded" in stopped.cell("%djinn_watch")
    shown = stopped.cell("%djinn_watch resid_post.4 --direction v --show -o seen")
    assert "watching resid_post.4 along v: 3 passes" in shown
    assert shown.splitlines()[1].split() == ["run.pass", "position", "component"]
    assert "is watched at a site: %djinn_watch resid_post.4" in stopped.fails("%djinn_watch --direction v")


def test_watch_records_lists_shows_and_ends(stopped: Notebook) -> None:
    assert "watching resid_post.4 at every pass" in stopped.cell("%djinn_watch 4")
    assert "watching resid_post.4: 0 passes recorded" in stopped.cell("%djinn_watch")
    assert "3 passes recorded" in stopped.cell("%djinn_watch resid_post.4 --show -o seen")
    assert [v.shape[0] for v in stopped.shell.user_ns["seen"].values] == [5, 1, 1]
    assert stopped.cell("%djinn_watch --off") == "1 watch ended\n"


def test_an_edit_is_a_few_words(stopped: Notebook) -> None:
    for words, kind in [
        ("scale 0.9", "Scale"),
        ("scale -1", "Scale"),
        ("add mood --coef 4", "Add"),
        ("add mood*2", "Add"),
        ("set 0", "Set"),
        ("zero", "Zero"),
        ("clamp -1 none", "Clamp"),
        ("project_out mood", "ProjectOut"),
        ("norm_match mood 0.5", "NormMatch"),
        ("orthogonal mood -1", "Orthogonal"),
        ("projection_cap mood none 2", "ProjectionCap"),
        ("patch_from paris --from-positions 0", "PatchFrom"),
    ]:
        stopped.cell("import numpy; mood = numpy.ones(256, numpy.float32)")
        said = stopped.cell(f"%djinn_edit {words} --positions -1 -o touched")
        request = last(stopped, requests.ApplyEdit)
        assert type(request.edit).__name__ == kind
        assert request.positions == (-1,)
        assert f"{kind.lower()}, [1, 256] at position 4" in said
    said = stopped.cell("%djinn_edit zero --effect")
    assert "top token changed from ' Paris' to ' Lyon', KL 1.234 nats" in said
    stopped.cell("%djinn_edit zero")
    assert "edited:" not in stopped.cell("%djinn_edit --revert")


def test_a_cell_edit_is_checked_before_it_is_sent(stopped: Notebook) -> None:
    for code, complaint in [
        ("h = h[:, :3]", "h must keep the shape [5, 256], it is [5, 3] now"),
        ("h[0] = float('nan')", "256 of 1,280 entries of h are not finite"),
        ("h = h.astype(int)", "h must stay floating point, it is int64 now"),
        ("h = None", "h must stay floating point"),
    ]:
        assert complaint in stopped.fails(f"%%djinn_edit\n{code}")
        assert not any(isinstance(r, requests.ApplyEdit) for r in stopped.engine.channel.requests)
    text = stopped._run("%%djinn_edit\n1 / 0")
    assert "ZeroDivisionError" in text
    assert "The edit was not applied" in stopped.error
    assert "h" not in stopped.shell.user_ns
    stopped.cell("h = 'mine'; factor = 2")
    stopped.cell("%%djinn_edit --positions -1\nh *= factor\nh[0, 0] = 0\n")
    sent = last(stopped, requests.ApplyEdit).edit.value
    values = np.frombuffer(sent.data, np.float32).reshape(sent.shape)
    assert values.shape == (1, 256)
    assert values[0, 0] == 0
    assert stopped.shell.user_ns["h"] == "mine"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("--positions 5:", "from position 5 on"),
        ("--positions -1 --on new", "position -1, at new tokens"),
        ("--on prompt", "in the prompt"),
        ("--when norm > 40", "when norm > 40"),
        ("--when \"token == ' Paris'\" --positions 0,4", "positions 0, 4, when token == ' Paris'"),
    ],
)
def test_a_rule_says_when_also_while_idle(notebook: Notebook, limits: str, said: str) -> None:
    assert notebook.cell(f"%djinn_steer 4 scale 2 {limits}") == f"rule 1 at resid_post.4: scale 2, {said}\n"
    assert f"rule 1, scale at resid_post.4, {said}: changed 0 of 0 passes" in notebook.cell("%djinn_steer")


def test_steering_rules_are_set_listed_and_ended(notebook: Notebook) -> None:
    notebook.cell("import numpy; mood = numpy.ones(256, numpy.float32)")
    assert notebook.cell("%djinn_steer 4 add mood --coef -2.5") == "rule 1 at resid_post.4: add mood (times -2.5)\n"
    assert last(notebook, requests.Steer).edit.coef == -2.5
    assert "rule 1, add at resid_post.4: changed 0 of 0 passes" in notebook.cell("%djinn_steer")
    assert notebook.cell("%djinn_unsteer") == "1 steering rule ended\n"
    assert "' a' may be meant otherwise." in notebook.cell("%djinn_steer 4 scale 2 --when \"token == 'a'\"")


# ------------------------------------------------------------------------------------------------------ branches


def test_fork_use_close(stopped: Notebook) -> None:
    said = stopped.cell("%djinn_fork rome")
    assert said == "rome forked from paris at resid_post.4, step 0; paris is in use\n"
    assert stopped.cell("%djinn_use rome -o s") == "rome is in use\n"
    assert repr(stopped.shell.user_ns["s"]) == "Session rome of demo"
    assert stopped.cell("%djinn_close") == "rome closed, 1 page freed; no session is in use\n"
    assert stopped.fails("%djinn_resume") == "No session is in use; choose one with %djinn_use NAME (there are: paris)."
    assert stopped.cell("%djinn_use paris") == "paris is in use\n"


def test_a_session_is_made_or_joined_only_when_asked(notebook: Notebook) -> None:
    assert "To make it: %djinn_use oslo --new" in notebook.fails("%djinn_use oslo")
    assert notebook.cell("%djinn_use oslo --new") == "oslo is in use\n"
    notebook.cell("%djinn_use oslo --new\n%djinn_use paris")
    notebook.engine._change("oslo", holder="kernel-2")
    notebook.shell.run_cell("%djinn_unload")
    notebook.engine._change("oslo", holder="kernel-2")
    notebook.cell("%djinn_load demo")
    assert "held by another kernel" in notebook.fails("%djinn_use oslo")
    assert "another kernel" in notebook.cell("%djinn_sessions")
    assert notebook.cell("%djinn_use oslo --join") == "oslo is in use\n"


def test_a_load_joins_a_session_by_the_name_that_is_displayed(notebook: Notebook) -> None:
    notebook.cell("%djinn_use work/rome.ipynb --new")
    notebook.engine._change("work/rome.ipynb", holder="kernel-2")
    notebook.shell.run_cell("%djinn_unload")
    notebook.engine._change("work/rome.ipynb", holder="kernel-2")
    assert "held by another kernel" in notebook.fails("%djinn_load demo --session work/rome.ipynb")
    notebook.cell("%djinn_load demo --session rome --join")
    assert notebook.state.session().name == "work/rome.ipynb"
    assert "rome" not in notebook.engine.sessions


def test_a_fresh_fork_takes_the_place_of_the_one_before(stopped: Notebook) -> None:
    first = stopped.cell("%djinn_fork rome --fresh")
    assert stopped.cell("%djinn_fork rome --fresh") == first
    assert stopped.engine.stops["rome"] is not None
    assert "into itself" in stopped.fails("%djinn_fork work/paris.ipynb --fresh")
    stopped.engine._change("rome", holder="kernel-2")
    stopped.shell.run_cell("%djinn_unload")
    stopped.engine._change("rome", holder="kernel-2")
    stopped.cell("%djinn_load demo")
    said = "Session 'rome' is open in another kernel (kernel-2); to close it all the same, add --force"
    assert stopped.fails("%djinn_fork rome --fresh").startswith(said)
    assert stopped.cell("%djinn_use work/paris.ipynb\n%djinn_fork rome --fresh --force") == "paris is in use\n" + first


def test_a_fork_of_a_finished_session_can_be_compared_under_its_own_name(notebook: Notebook) -> None:
    notebook.cell("%djinn_run The capital of France is")
    notebook.cell("%djinn_fork rome")
    assert notebook.cell("%djinn_diff rome").startswith("rome against paris: the same 8 tokens")


def test_two_sessions_are_compared_at_a_stop_and_finished(stopped: Notebook) -> None:
    """The other is worked on without being used."""
    stopped.cell("%djinn_fork rome")
    assert "values at resid_post.4: all 1,280 numbers are equal" in stopped.cell("%djinn_diff rome paris")
    assert "finished" in stopped.cell("%djinn_resume --session rome")
    assert "paused" in stopped.cell("%djinn_sessions")
    said = stopped.cell("%djinn_diff rome")
    assert said.startswith("rome against paris: 3 of 8 positions differ, the first at 5")


@pytest.mark.parametrize("line", ["%djinn_lens", "%djinn_sweep resid_post --metric logit(5)", "%djinn_loss"])
def test_an_interrupt_of_any_magic_is_one_line(stopped: Notebook, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    result = Future.result

    def break_in(*arguments: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return result(*arguments)

    monkeypatch.setattr("concurrent.futures.Future.result", break_in)
    assert stopped.fails(line).startswith("Interrupted. The ")


def test_status_names_the_methods_that_an_engine_lacks_or_leaves_out(notebook: Notebook) -> None:
    assert "the engine lacks" not in notebook.cell("%djinn_status")
    channel = notebook.engine.channel
    others = tuple(one for one in channel.welcome.methods if one[0] != "heads")
    channel.welcome = msgspec.structs.replace(channel.welcome, methods=others, left_out=("It is\n left out.",))
    said = notebook.cell("%djinn_status")
    assert "the engine lacks heads (djinn_jupyter.methods.heads of djinn-jupyter" in said
    assert r"in the engine: It is\n left out." in said


def test_without_a_notebook_the_session_has_the_name_of_the_process(
    bare: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert f"session ipython-{os.getpid()}:" in bare.cell("%djinn_load demo")
    assert "session rome:" in bare.cell("%djinn_load demo --session rome")


def test_what_changes_is_shown_in_a_notebook_only(bare: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console drops updates of a display, and would say "running" for ever."""
    monkeypatch.setenv("DJINN_STATIC", "0")
    assert not bare.state.screen.is_static
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert bare.state.screen.is_static
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    assert not bare.state.screen.is_static


METRIC = "--metric \"logit(' Rome') - logit(' Paris')\""


def test_a_grid_in_a_file_or_a_variable_is_computed_again(notebook: Notebook, tmp_path: Path) -> None:
    notebook.shell.user_ns["clean"] = [1, 2, 3]
    notebook.cell(f"%djinn_sweep resid_post --from clean {METRIC} --seed 3 -o grid")
    grid = notebook.shell.user_ns["grid"]
    asked = last(notebook, Sweep)
    file = grid.save(tmp_path / "a.grid.djinn")
    assert "The same bits: 40 values of Grid of" in notebook.cell(f"%djinn_reproduce {file} -o found")
    again = last(notebook, Sweep)
    assert (again.site, again.seed, again.clean) == (asked.site, 3, (1, 2, 3))
    assert notebook.shell.user_ns["found"].same
    reply = with_values(grid.replies[0], np.where(grid.values == -3, -2.5, grid.values))
    notebook.shell.user_ns["other"] = Grid([reply])
    said = notebook.cell("%djinn_reproduce other")
    assert "Other bits: 1 of 40 values differ, by up to 0.5, most at layer 0, position 0." in said


def test_what_is_no_whole_grid_is_one_line(notebook: Notebook, tmp_path: Path) -> None:
    notebook.cell(f"%djinn_sweep resid_post --edit zero {METRIC} -o grid")
    assert "neither a variable nor a file or folder 'nothing'" in notebook.fails("%djinn_reproduce nothing")
    notebook.cell("three = 3")
    assert "3 is none of these" in notebook.fails("%djinn_reproduce three")
    grid = notebook.shell.user_ns["grid"]
    notebook.shell.user_ns["old"] = Grid([msgspec.structs.replace(grid.replies[0], made=None)])
    assert "This grid is not whole" in notebook.fails("%djinn_reproduce old")
