"""The adapter against a real engine, spoken to by a public client of the protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import djinn_jupyter as dj
from djinn_jupyter import demo
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.editors.dap.protocol import CAPABILITIES
from djinn_jupyter.wire.nouns import Progress
from tests.dap.editor import Editor, on_pipes, on_port

PROMPT = "The capital of France is"


def test_a_whole_conversation_on_pipes(engine: RemoteEngine) -> None:
    """It is launch, stop, stack, scopes, variables, evaluate, set a variable, step, back, continue, terminated."""
    plain = engine.session("plain").run(PROMPT, max_new_tokens=3)
    editor = on_pipes()
    assert editor.capabilities == CAPABILITIES
    editor.launch("resid_post.4", prompt=PROMPT, max_new_tokens=3)
    stopped = editor.event("stopped")
    assert (stopped["reason"], stopped["threadId"]) == ("function breakpoint", 1)
    stack = [frame["name"] for frame in editor.stack()]
    assert stack == [
        "resid_post.4, step 0",
        "model.layers.4 (LlamaDecoderLayer)",
        "model (LlamaModel)",
        "LlamaForCausalLM (demo)",
    ]
    scopes = editor.scopes()
    assert list(scopes) == ["Activation", "Logit lens", "Tokens", "Session"]
    activation = editor.inside(scopes["Activation"])
    assert activation["shape"]["value"] == "[5, 128]"
    assert activation["dtype"]["value"] == "float32"
    rows = editor.inside(activation["value"]["variablesReference"])
    assert rows["[3]"]["value"].startswith("' France'")
    assert editor.ask("evaluate", expression="token", context="hover")["result"] == "' is'"
    editor.ask("setVariable", variablesReference=activation["value"]["variablesReference"], name="[4]", value="* 0.5")
    editor.ask("next", threadId=1)
    assert editor.stopped() == "resid_post.5"
    editor.ask("stepBack", threadId=1)
    assert editor.stopped() == "resid_post.4"
    editor.break_at()
    editor.ask("continue", threadId=1)
    editor.event("terminated")
    spoken = "".join(
        m["body"]["output"] for m in editor.said if m.get("event") == "output" and m["body"]["category"] == "stdout"
    )
    assert isinstance(plain, Finished)
    assert spoken == plain.text
    editor.ask("disconnect")
    assert editor.ended()
    editor.leave()
    assert [s.name for s in engine.sessions() if s.name.startswith("dap-")] == []


def test_figures_are_those_of_the_array(engine: RemoteEngine, editor: Editor) -> None:
    editor.launch("z.3[1]", prompt=PROMPT, session="figures")
    assert editor.stopped() == "z.3[1]"
    value = engine.session("figures", join=True).inspect().value
    activation = editor.inside(editor.scopes()["Activation"])
    of_all = f"norm of {len(value)} positions"
    numbers = {name: float(activation[name]["value"]) for name in ("mean", "std", "min", "max", "norm", of_all)}
    wide = value.astype(np.float64)
    expected = {
        "mean": wide.mean(),
        "std": wide.std(),
        "min": wide.min(),
        "max": wide.max(),
        "norm": np.linalg.norm(wide[-1]),
        of_all: np.linalg.norm(wide),
    }
    watched = float(editor.ask("evaluate", expression="norm", context="watch")["result"])
    assert watched == pytest.approx(numbers["norm"], rel=1e-5)
    assert numbers == pytest.approx(expected, rel=1e-5)
    heads = editor.inside(editor.inside(activation["value"]["variablesReference"])["[2]"]["variablesReference"])
    assert list(heads) == ["[1]"]
    part = editor.inside(heads["[1]"]["variablesReference"], filter="indexed", start=10, count=4)
    assert list(part) == ["[10]", "[11]", "[12]", "[13]"]
    assert [float(v["value"]) for v in part.values()] == pytest.approx(value[2, 0, 10:14].tolist(), rel=1e-5)
    assert [frame["name"] for frame in editor.stack()][1:3] == [
        "model.layers.3.self_attn.o_proj (Linear)",
        "model.layers.3.self_attn (LlamaAttention)",
    ]
    editor.ask("disconnect")


@pytest.mark.parametrize(
    ("site", "path", "text", "edit", "where"),
    [
        ("resid_post.4", (), "scale 0.9", dj.scale(0.9), {}),
        ("resid_post.4", ("[2]",), "* 0.5", dj.scale(0.5), {"positions": 2}),
        ("resid_post.4", ("[2]", "[7]"), "1.5", dj.set_to(1.5), {"positions": 2, "site": "resid_post.4[7]"}),
        ("resid_post.4", ("[4]",), "0", dj.set_to(0), {"positions": 4}),
        ("z.3", ("[1]", "[2]"), "zero", dj.zero(), {"positions": 1, "site": "z.3[2]"}),
    ],
)
def test_a_variable_that_is_set_is_an_edit(engine, editor: Editor, site: str, path, text, edit, where) -> None:
    editor.launch(site, prompt=PROMPT, max_new_tokens=2, session="typed")
    editor.event("stopped")
    twin = engine.session("twin", fresh=True)
    twin.breakpoint(site)
    twin.run(PROMPT, max_new_tokens=2)
    twin.edit(edit, **where)
    reference = editor.scopes()["Activation"]
    steps = ["value", *path]
    for name in steps[:-1]:
        reference = editor.inside(reference)[name]["variablesReference"]
    editor.ask("setVariable", variablesReference=reference, name=steps[-1], value=text)
    typed = engine.session("typed", join=True).inspect(site).value
    assert typed.tobytes() == twin.inspect(site).value.tobytes()
    twin.close()
    editor.ask("disconnect")


def test_an_entry_of_a_head_is_set_alone(engine: RemoteEngine, editor: Editor) -> None:
    editor.launch("z.3", prompt=PROMPT, session="entry")
    editor.event("stopped")
    session = engine.session("entry", join=True)
    expected = session.inspect("z.3").value
    expected[1, 2, 5] = 3.25
    reference = editor.scopes()["Activation"]
    for name in ("value", "[1]", "[2]"):
        reference = editor.inside(reference)[name]["variablesReference"]
    changed = editor.ask("setVariable", variablesReference=reference, name="[5]", value="3.25")
    assert changed["value"] == "3.25"
    assert session.inspect("z.3").value.tobytes() == expected.tobytes()
    assert "no value" in editor.refused(
        "setVariable", variablesReference=editor.scopes()["Activation"], name="value", value="soup"
    )
    assert "to look at" in editor.refused(
        "setVariable", variablesReference=editor.scopes()["Activation"], name="mean", value="0"
    )
    editor.ask("disconnect")


def test_step_in_walks_the_points_of_a_layer_and_step_out_a_token(editor: Editor) -> None:
    editor.launch("resid_post.3", prompt=PROMPT, max_new_tokens=3)
    assert editor.stopped() == "resid_post.3"
    met = []
    for _ in range(4):
        editor.ask("stepIn", threadId=1)
        met.append(editor.stopped())
    assert met[0] == "attn_in.4"
    assert set(met[1:]) <= {"q.4", "k.4", "v.4", "q_rot.4", "k_rot.4"}
    editor.break_at()
    editor.ask("stepOut", threadId=1)
    assert editor.stopped() == met[-1]
    assert editor.stack()[0]["name"] == f"{met[-1]}, step 1"
    assert editor.ask("evaluate", expression="step", context="watch")["result"] == "1"
    editor.ask("disconnect")


def test_the_model_is_a_source_with_breakpoints_at_its_lines(editor: Editor) -> None:
    editor.ask("launch", model="demo", prompt=PROMPT)
    editor.event("initialized")
    [source] = editor.ask("loadedSources")["sources"]
    lines = editor.ask("source", source=source, sourceReference=source["sourceReference"])["content"].splitlines()
    header = next(number for number, line in enumerate(lines, 1) if line.startswith("layer 5:"))
    mlp = next(number for number, line in enumerate(lines, 1) if line.split()[:1] == ["mlp_out.5"])
    answers = editor.ask(
        "setBreakpoints", source=source, breakpoints=[{"line": header}, {"line": mlp, "hitCondition": "2"}]
    )
    assert [(point["verified"], point["line"]) for point in answers["breakpoints"]] == [(True, header + 1), (True, mlp)]
    places = editor.ask("breakpointLocations", source=source, line=header, endLine=header + 2)["breakpoints"]
    assert [place["line"] for place in places] == [header + 1, header + 2]
    editor.ask("configurationDone")
    stopped = editor.event("stopped")
    assert stopped["reason"] == "breakpoint"
    assert stopped["hitBreakpointIds"] == [answers["breakpoints"][0]["id"]]
    assert editor.stack()[0]["line"] == header + 1
    editor.ask("setBreakpoints", source=source, breakpoints=[{"line": mlp, "hitCondition": "2"}])
    editor.ask("continue", threadId=1)
    assert editor.stopped() == "mlp_out.5"
    assert editor.stack()[0]["name"] == "mlp_out.5, step 1"
    elsewhere = editor.ask("setBreakpoints", source={"path": "train.py"}, breakpoints=[{"line": 1}])["breakpoints"]
    assert [point["verified"] for point in elsewhere] == [False]
    editor.ask("disconnect")


def test_conditions_hover_and_reverse_continue(editor: Editor) -> None:
    editor.ask("launch", model="demo", prompt=PROMPT, max_new_tokens=6)
    editor.event("initialized")
    answers = editor.ask(
        "setFunctionBreakpoints",
        breakpoints=[
            {"name": "resid_post.4", "condition": "step > 0 and norm > 1"},
            {"name": "resid_post.99"},
            {"name": "4", "condition": "weather"},
            {"name": "4", "hitCondition": "9" * 5000},
        ],
    )["breakpoints"]
    assert [point["verified"] for point in answers] == [True, False, False, False]
    assert "layers 0..7" in answers[1]["message"]
    editor.ask("configurationDone")
    assert editor.stopped() == "resid_post.4"
    assert editor.ask("evaluate", expression="step", context="hover")["result"] == "1"
    norm = float(editor.ask("evaluate", expression="norm", context="watch")["result"])
    value = editor.ask("evaluate", expression="resid_post.4", context="hover")
    assert float(editor.inside(value["variablesReference"])["norm"]["value"]) == pytest.approx(norm, rel=1e-4)
    below = editor.ask("evaluate", expression="z.2[1]", context="hover")
    assert "re-run" in editor.inside(below["variablesReference"])["exactness"]["value"]
    assert "ahead" in editor.refused("evaluate", expression="resid_post.6", context="hover")
    assert "knows no 'weather'" in editor.refused("evaluate", expression="weather", context="watch")
    probability = float(editor.ask("evaluate", expression="p(' Paris')", context="watch")["result"])
    assert 0 <= probability <= 1
    editor.ask("continue", threadId=1)
    editor.stopped()
    editor.ask("next", threadId=1)
    editor.stopped()
    editor.ask("reverseContinue", threadId=1)
    editor.stopped()
    assert editor.stack()[0]["name"] == "resid_post.4, step 2"
    editor.ask("reverseContinue", threadId=1)
    editor.stopped()
    assert editor.stack()[0]["name"] == "resid_post.4, step 1"
    assert "No breakpoint was met before" in editor.refused("reverseContinue", threadId=1)
    assert editor.stack()[0]["name"] == "resid_post.4, step 1"
    editor.ask("disconnect")


def test_the_console_speaks_as_the_magics_do(engine: RemoteEngine, editor: Editor) -> None:
    def say(line: str) -> str:
        return str(editor.ask("evaluate", expression=line, context="repl")["result"])

    editor.launch("resid_post.4", prompt=PROMPT, max_new_tokens=4)
    editor.event("stopped")
    assert "scale 0.9" in say("edit scale 0.9 --positions -1")
    assert "KL" in say("edit add [1.0] --coef 2 --effect")
    assert "edit" not in say("revert")
    assert "Lens at resid_post.4" in say("lens")
    assert "rule" in say("steer resid_post.2 scale 1.1")
    assert "1 rules ended" in say("unsteer")
    say("step 2")
    assert editor.stopped() == "resid_post.6"
    say("back 1 --layer")
    assert editor.stopped() == "resid_post.5"
    assert "forked" in say("fork editors-fork")
    engine.session("editors-fork", join=True).close()
    assert "patch_from" in editor.refused("evaluate", expression="edit paint blue", context="repl")
    assert "quote" in editor.refused("evaluate", expression="edit scale '1", context="repl")
    assert "revert" in say("help")
    targets = editor.ask("completions", text="edit --site resid_po", column=21)["targets"]
    assert targets[0] == {"label": "resid_post.0", "start": 12, "length": 8}
    assert "has no line 7" in editor.refused("completions", text="edit", column=5, line=7)
    say("resume --free")
    editor.event("terminated")
    editor.ask("disconnect")


def test_an_editor_that_is_attached_sees_what_a_notebook_does(engine: RemoteEngine, editor: Editor) -> None:
    session = engine.session("shared", fresh=True)
    session.breakpoint("resid_post.2", when="step == 0")
    session.run(PROMPT, max_new_tokens=4)
    other = engine.session("bystander", fresh=True)
    editor.ask("attach", model="demo", session="shared", all_sessions=True)
    editor.event("initialized")
    editor.break_at("resid_post.6")
    editor.ask("configurationDone")
    assert editor.stopped() == "resid_post.2"
    names = {thread["name"]: thread["id"] for thread in editor.ask("threads")["threads"]}
    assert names["shared"] == 1
    assert "bystander" in names
    past = editor.scopes()["Tokens"]
    stop = session.resume()
    assert isinstance(stop, Paused)
    assert editor.event("continued")["threadId"] == 1
    assert editor.stopped() == "resid_post.6"
    assert "past" in editor.refused("variables", variablesReference=past)
    session.back()
    assert editor.stopped() == "resid_post.2"
    other.breakpoint("resid_post.1")
    other.run(PROMPT)
    assert editor.stopped(names["bystander"]) == "resid_post.1"
    editor.ask("disconnect")
    assert {point.site for point in session.breakpoints()} == {"resid_post.2"}
    assert session.stop.site == "resid_post.2"
    session.close()
    other.close()


def test_an_edit_of_somebody_else_is_shown_and_what_was_fetched_before_is_fetched_again(
    engine: RemoteEngine, editor: Editor
) -> None:
    session = engine.session("edited", fresh=True)
    session.breakpoint("resid_post.2", when="step == 0")
    session.run(PROMPT, max_new_tokens=4)
    editor.ask("attach", model="demo", session="edited")
    editor.event("initialized")
    editor.ask("configurationDone")
    assert editor.stopped() == "resid_post.2"
    before = editor.inside(editor.scopes()["Activation"])
    assert "edits" not in before
    session.edit(dj.scale(0.5))
    assert editor.event("invalidated")["areas"] == ["variables"]
    after = editor.inside(editor.scopes()["Activation"])
    assert float(after["norm"]["value"]) == pytest.approx(float(before["norm"]["value"]) / 2, rel=1e-4)
    assert "scale" in after["edits"]["value"]
    editor.ask("disconnect")
    session.close()


def test_two_notebooks_of_one_name_are_told_apart_by_their_folders(engine: RemoteEngine, editor: Editor) -> None:
    ours = [engine.session(f"/team/{folder}/01_quickstart.ipynb", fresh=True) for folder in ("ada", "bob")]
    said = editor.refused("attach", model="demo", session="01_quickstart")
    assert "ada/01_quickstart, bob/01_quickstart" in said
    editor.ask("attach", model="demo", session="bob/01_quickstart")
    editor.event("initialized")
    editor.ask("configurationDone")
    for session in ours:
        session.close(force=True)


@pytest.mark.parametrize(
    ("name", "command", "how"),
    [("theirs", "terminate", {}), ("/team/ada/theirs.ipynb", "disconnect", {"terminateDebuggee": True})],
)
def test_what_another_client_has_open_is_ended_with_force_only(
    engine: RemoteEngine, name: str, command: str, how: dict[str, bool]
) -> None:
    """A session whose end is refused stays as it was; an editor that leaves takes its breakpoints along all the
    same."""
    theirs = engine.session(name, fresh=True)
    for force in (False, True):
        editor = on_pipes()
        editor.ask("attach", model="demo", session="theirs", force=force)
        editor.break_at("resid_post.3")
        if force:
            editor.ask(command, **how)
            assert name not in {one.name for one in engine.sessions()}
        else:
            assert "is open in another kernel" in (said := editor.refused(command, **how))
            assert "to close it all the same, add --force" in said
            assert len(theirs.describe().breakpoints) == (command == "terminate")
        if command == "terminate":
            editor.ask("disconnect")
        assert editor.ended()
        editor.leave()
        if not force:
            assert theirs.describe().breakpoints == ()


def test_two_editors_at_once(port: tuple[int, str], editor: Editor) -> None:
    second = on_port(*port)
    editor.launch("resid_post.4", prompt=PROMPT)
    second.launch("resid_post.5", prompt=PROMPT)
    assert (editor.stopped(), second.stopped()) == ("resid_post.4", "resid_post.5")
    editor.ask("stepIn", threadId=1)
    assert editor.stopped() == "attn_in.5"
    assert second.stack()[0]["name"] == "resid_post.5, step 0"
    second.leave()
    editor.break_at()
    editor.ask("continue", threadId=1)
    editor.event("terminated")
    editor.ask("disconnect")


def test_pause_stops_a_run(editor: Editor) -> None:
    editor.launch(prompt=PROMPT, max_new_tokens=300, ignore_eos=True, temperature=1.0)
    editor.event("output")
    assert "running" in editor.refused("next", threadId=1)
    editor.ask("pause", threadId=1)
    assert editor.event("stopped")["reason"] == "pause"
    assert "not running" in editor.refused("pause", threadId=1)
    editor.ask("terminate")
    editor.event("terminated")
    editor.ask("disconnect")


def test_a_feature_is_shown_with_its_name(
    engine: RemoteEngine, editor: Editor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    engine.add_module("sae", demo.SAE_PATH)
    engine.name_features("sae.4", {436: "$a$ <b>"})
    try:
        editor.launch("sae.4[436]", prompt=PROMPT, max_new_tokens=1)
        assert editor.event("stopped")["description"] == "Paused at sae.4[436] '$a$ <b>'"
        assert editor.stack()[0]["name"] == "sae.4[436] '$a$ <b>', step 0"
        shown = editor.inside(editor.scopes()["Session"])
        assert editor.inside(shown["breakpoints"]["variablesReference"])["1"]["value"].startswith(
            "sae.4[436] '$a$ <b>'"
        )
        assert editor.inside(shown["stops"]["variablesReference"])["0"]["value"].startswith(
            "sae.4[436] '$a$ <b>', step"
        )
    finally:
        editor.ask("disconnect")
        assert editor.ended()
        engine.remove_module("sae")


def test_a_thread_says_what_is_swept_in_it(
    engine: RemoteEngine, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.session("shared", fresh=True)
    editor.ask("attach", model="demo", session="shared")
    editor.event("initialized")
    assert editor.ask("threads")["threads"] == [{"id": 1, "name": "shared"}]
    working = replace(
        engine.session("shared").describe(), progress=Progress(doing="sweeping", done=40, total=192, counted="cells")
    )
    monkeypatch.setattr(RemoteEngine, "sessions", lambda self: (working,))
    assert editor.ask("threads")["threads"] == [{"id": 1, "name": "shared (sweeping, 40 of 192 cells)"}]
    editor.ask("disconnect")
