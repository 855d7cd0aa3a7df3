"""Magics of added modules, adapters and collections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.methods.datasets.api import scoring
from djinn_jupyter.methods.datasets.request import Collect, Score
from djinn_jupyter.wire import replies, requests
from tests import adapters, saes, transcoders
from tests.families import build
from tests.magics.conftest import Notebook, last
from tests.magics.test_completion import complete


def test_a_module_is_added_shown_completed_and_removed(notebook: Notebook, tmp_path: Path) -> None:
    folder = saes.saved(tmp_path / "my sae", saes.drawn(8))
    said = notebook.cell(f'%djinn_add_module sae "{folder}" --at resid_post.4 -o module')
    asked = last(notebook, requests.AddModule)
    assert (asked.name, asked.at, asked.folder, asked.error_term) == ("sae", "resid_post.4", str(folder), True)
    assert {one.name for one in asked.tensors} == {"W_enc", "W_dec", "b_enc", "b_dec"}
    assert "sae.4: sae (relu) of resid_post.4, 8 to 48 features" in said
    assert notebook.shell.user_ns["module"].site == "sae.4"
    assert "sae.4: sae (relu)" in notebook.cell("%djinn_status")
    assert complete(notebook, "%djinn_break sa") == ["sae.4"]
    assert complete(notebook, "%djinn_remove_module s") == ["sae.4"]
    assert complete(notebook, "%djinn_add_module sae f --at resid_post.") == [f"resid_post.{n}" for n in range(8)]
    assert "1 module removed" in notebook.cell("%djinn_remove_module sae.4")
    assert last(notebook, requests.RemoveModule).layer == 4
    assert "There is no added module" in notebook.fails("%djinn_remove_module sae")


def test_a_splice_is_measured_beside_model_and_zeros(notebook: Notebook, tmp_path: Path) -> None:
    notebook.cell(f"%djinn_add_module sae {saes.saved(tmp_path, saes.drawn(8))} --at resid_post.4")
    notebook.shell.user_ns["prompts"] = [[1, 2, 3], [4, 5]]
    said = notebook.cell("%djinn_splice sae.4 --prompts prompts -o found")
    assert "sae.4 in place of resid_post.4: loss 0.5000, of the model 0.5000, with resid_post.4 at zero 0.5000" in said
    assert last(notebook, requests.RemoveModule).name == "spliced"
    assert notebook.shell.user_ns["found"].module == "sae.4"
    assert "Name the prompts" in notebook.fails("%djinn_splice sae.4")
    assert "There is no added module sae.5; there are: sae.4" in notebook.fails("%djinn_splice sae.5 --prompts prompts")


def test_the_transcoders_of_all_layers_are_added_from_one_folder(notebook: Notebook, tmp_path: Path) -> None:
    folder = transcoders.set_saved(tmp_path / "set", {layer: transcoders.drawn(8) for layer in (0, 1)})
    said = notebook.cell(f"%djinn_add_transcoders tc {folder} -o found")
    assert [one.site for one in notebook.shell.user_ns["found"]] == ["tc.0", "tc.1"]
    assert "tc.0: transcoder (relu) of mlp_in.0" in said
    assert "tc.1: transcoder (relu) of mlp_in.1" in said
    across = transcoders.across_saved(tmp_path / "clt", transcoders.drawn_across(8, 2), config=False)
    assert "does not say where its module was trained" in notebook.fails(f"%djinn_add_transcoders clt {across}")
    said = notebook.cell(f"%djinn_add_transcoders clt {across} --point mlp_in --no-error-term")
    assert "clt.1: cross-layer transcoder (relu) of mlp_in.1" in said
    assert not last(notebook, requests.AddModule).error_term
    assert "has no transcoders of circuit-tracer by layer" in notebook.fails(f"%djinn_add_transcoders x {tmp_path}")


def test_what_cannot_be_read_is_one_sentence(notebook: Notebook, tmp_path: Path) -> None:
    assert "There is no folder" in notebook.fails(f"%djinn_add_module sae {tmp_path / 'missing'}")
    assert "has neither cfg.json" in notebook.fails(f"%djinn_add_module sae {tmp_path}")
    saes.saved(tmp_path, saes.drawn(8))
    assert "does not say where its module was trained" in notebook.fails(f"%djinn_add_module sae {tmp_path}")
    saes.saved(tmp_path, saes.drawn(8), metadata={"hook_name": "somewhere else"})
    assert "which is no point here" in notebook.fails(f"%djinn_add_module sae {tmp_path}")
    assert "is no added module" in notebook.fails("%djinn_remove_module sae.all")
    saes.saved(tmp_path, saes.drawn(8), metadata={"hook_name": "blocks.3.hook_resid_post"})
    assert "leave out the error term" in notebook.cell(f"%djinn_add_module sae {tmp_path} --no-error-term")
    assert last(notebook, requests.AddModule).at == "blocks.3.hook_resid_post"


def test_features_are_named_and_listed(notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    notebook.cell(f"%djinn_add_module sae {saes.saved(tmp_path / 'sae', saes.drawn(8))} --at resid_post.4")
    assert "sae.4: 1 named feature: 17 'the $word$'" in notebook.cell("%djinn_name sae.4[17] the $word$ -o found")
    assert notebook.shell.user_ns["found"] == {17: "the $word$"}
    assert "breakpoint 1 at sae.4[17] 'the $word$'" in notebook.cell("%djinn_break sae.4[17]")
    assert "sae.4[17] 'the $word$'" in notebook.cell("%djinn_breaks")
    assert "breakpoint 1 is off: sae.4[17] 'the $word$'" in notebook.cell("%djinn_breaks --off 1")
    assert "rule 1 at sae.4[17] 'the $word$': zero" in notebook.cell("%djinn_steer sae.4[17] zero")
    assert "watching sae.4[17] 'the $word$' at every pass" in notebook.cell("%djinn_watch sae.4[17]")
    assert "1 breakpoint (sae.4[17] 'the $word$')" in notebook.cell("%djinn_load demo")
    (tmp_path / "names.csv").write_text("".join(f"{feature},name {feature}\n" for feature in range(12)))
    said = notebook.cell(f"%djinn_name sae.4 --from {tmp_path / 'names.csv'}")
    assert "sae.4: 13 named features: 0 'name 0', 1 'name 1'" in said
    assert "7 'name 7' and 5 more" in said
    assert "12 named features" in notebook.cell('%djinn_name sae.4[17] ""')
    assert "12 named features" in notebook.cell("%djinn_name sae.4")
    for line in ("sae.4 capitals", "sae.4[1] x --from f", f"sae.4[1] --from {tmp_path / 'names.csv'}"):
        assert "Write a feature and its name" in notebook.fails(f"%djinn_name {line}")
    assert "There is no added module sae.5" in notebook.fails("%djinn_name sae.5[1] x")
    assert "no feature 48" in notebook.fails("%djinn_name sae.4[48] x")
    assert complete(notebook, "%djinn_name s") == ["sae.4"]


def folder_in(place: Path) -> Path:
    return adapters.saved(place / "my sql", adapters.drawn(build("llama", layers=1), ("q_proj", "v_proj")))


def test_an_adapter_is_added_chosen_shown_and_removed(notebook: Notebook, tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    assert "no adapter was added" in notebook.cell("%djinn_adapter")
    said = notebook.cell(f'%djinn_add_adapter sql "{folder}" -o adapter')
    asked = last(notebook, requests.AddAdapter)
    assert (asked.name, asked.folder, len(asked.modules)) == ("sql", str(folder), 2)
    assert "sql: 2 modules (q_proj, v_proj)" in said
    assert notebook.shell.user_ns["adapter"].name == "sql"
    assert complete(notebook, "%djinn_adapter ") == ["off", "sql"]
    assert complete(notebook, "%djinn_remove_adapter s") == ["sql"]
    assert "computes with the adapter sql" in notebook.cell("%djinn_adapter sql")
    assert last(notebook, requests.SetAdapter).adapter == "sql"
    assert "adapter sql" in notebook.cell("%djinn_sessions")
    assert "the adapter sql" in notebook.cell("%djinn_status")
    assert "; in " in notebook.cell("%djinn_adapter")
    assert "computes with the model alone" in notebook.cell("%djinn_adapter off")
    assert last(notebook, requests.SetAdapter).adapter is None
    notebook.cell("%djinn_use tuned --new --adapter sql")
    asked = last(notebook, requests.SetAdapter)
    assert (asked.session, asked.adapter) == ("tuned", "sql")
    assert "the adapter sql was removed" in notebook.cell("%djinn_remove_adapter sql")
    assert "There is no adapter sql" in notebook.fails("%djinn_adapter sql")


def test_an_adapter_that_cannot_be_read_is_one_sentence(notebook: Notebook, tmp_path: Path) -> None:
    assert "There is no folder" in notebook.fails(f"%djinn_add_adapter sql {tmp_path / 'missing'}")
    assert "has no adapter_config.json" in notebook.fails(f"%djinn_add_adapter sql {tmp_path}")
    adapters.saved(tmp_path, adapters.drawn(build("llama", layers=1), ("q_proj",)), use_dora=True)
    assert "has use_dora True, which is not computed here" in notebook.fails(f"%djinn_add_adapter sql {tmp_path}")


def test_prompts_are_computed_with_an_adapter_that_is_named(notebook: Notebook, tmp_path: Path) -> None:
    notebook.cell(f'%djinn_add_adapter sql "{folder_in(tmp_path)}"')
    notebook.shell.user_ns.update(prompts=["It is"], pairs=[("It is", "It was")])
    asked_before = len(asked(notebook))
    for line in (
        f"%djinn_collect resid_post.0 --prompts prompts --to {tmp_path / 'acts'} --adapter sql",
        "%djinn_heads --prompts prompts --adapter sql",
        "%djinn_sweep resid_post --prompts pairs --metric \"logit(' a')\" --adapter sql",
    ):
        notebook.cell(line)
    assert [one.adapter for one in asked(notebook)[asked_before:]] == ["sql"] * 3
    assert "--adapter out" in notebook.fails("%djinn_heads --patterns --adapter sql")
    assert "leave adapter out" in notebook.fails(
        "%djinn_sweep resid_post --edit zero --metric \"logit(' a')\" --adapter sql"
    )


def asked(notebook: Notebook) -> list[requests.SetAdapter]:
    return [one for one in notebook.engine.channel.requests if isinstance(one, requests.SetAdapter)]


def test_a_variable_of_prompts_is_collected_and_kept(notebook: Notebook, tmp_path: Path) -> None:
    notebook.shell.user_ns["prompts"] = [[1, 2, 3], [4, 5]]
    folder = tmp_path / "acts"
    said = notebook.cell(
        f"%djinn_collect resid_post.4 z.2[1] --prompts prompts --positions -1 --to {folder} --dtype float16 -o acts"
    )
    asked = last(notebook, Collect)
    assert (asked.sites, asked.positions, asked.dtype) == (("resid_post.4", "z.2[1]"), (-1,), "float16")
    assert asked.prompts == ((1, 2, 3), (4, 5))
    assert "resid_post.4  [2, 4] float32" in said
    assert "2 prompts in 1 shard" in said
    assert notebook.shell.user_ns["acts"]["z.2[1]"].shape == (2, 4)
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


def test_a_file_has_a_prompt_a_line_and_a_star_is_every_layer(notebook: Notebook, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"tokens": [1, 2]}\n\n[3]\n')
    notebook.cell(f"%djinn_collect mlp_out.*, z.2[1, 3] --prompts {file} --to {tmp_path / 'acts'} --shard-prompts 1")
    asked = last(notebook, Collect)
    assert asked.sites == (*(f"mlp_out.{layer}" for layer in range(8)), "z.2[1,3]")
    assert (asked.shard, asked.first, asked.last, asked.prompts) == (1, 1, True, ((3,),))


def test_an_interrupt_says_that_the_same_line_goes_on(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(request: Collect) -> replies.Reply:
        raise KeyboardInterrupt

    monkeypatch.setattr(notebook.engine, "_collect", interrupted)
    notebook.shell.user_ns["prompts"] = [[1]]
    said = notebook.fails(f"%djinn_collect z.1 --prompts prompts --to {tmp_path}")
    assert "Whole shards are kept" in said
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("z.1 --to acts", "needs prompts and a folder"),
        ("z.1 --prompts prompts", "needs prompts and a folder"),
        ("z.1 --prompts nothing --to acts", "neither a variable nor a file 'nothing'"),
        ("z.1 --prompts prompts --to acts --positions 1:", "name both ends of a range"),
        ("z.1 --prompts prompts --to acts --shard-prompts 0", "A shard has 1 to"),
        ("z.1 --prompts empty --to acts", "There are no prompts"),
        ("z.1 --prompts blank --to acts", "Prompt 1 (counted from 0) has no tokens"),
        ("z.1 --prompts text --to acts", "this is one str"),
    ],
)
def test_what_cannot_be_meant_is_one_line(notebook: Notebook, line: str, said: str) -> None:
    notebook.shell.user_ns |= {"prompts": [[1]], "empty": [], "blank": [[1], []], "text": "a prompt"}
    assert said in notebook.fails(f"%djinn_collect {line}")


@pytest.mark.parametrize(
    ("broken", "said"), [(IllegalMove("Session 'score 1' was closed."), "was closed"), (KeyboardInterrupt(), "Interr")]
)
def test_losses_of_the_first_prompts_are_kept_where_the_measurement_ends(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, broken: BaseException, said: str
) -> None:
    monkeypatch.setattr("djinn_jupyter.methods.datasets.api.scoring.ASKED_TOKENS", 4)
    ask_for = scoring.ask_for

    def break_in(channel: Any, request: Any) -> Any:
        if isinstance(request, Score) and request.first:
            raise broken
        return ask_for(channel, request)

    monkeypatch.setattr(scoring, "ask_for", break_in)
    notebook.shell.user_ns["prompts"] = [[1, 2, 3], [4, 5, 6]]
    assert said in notebook.fails("%djinn_loss --prompts prompts -o losses")
    assert notebook.shell.user_ns["losses"].tokens == ((1, 2, 3),)


def test_the_loss_of_the_line_and_of_prompts_is_said_with_the_rules_that_held(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_loss -o losses")
    asked = last(notebook, Score)
    assert (asked.prompts, asked.rules_of, asked.what) == (("work/paris.ipynb",), "work/paris.ipynb", "loss")
    assert "Loss 0.5000 a token, perplexity 1.649: 4 tokens of 1 prompt" in said
    assert notebook.shell.user_ns["losses"][0].tolist() == [0.5] * 4
    notebook.shell.user_ns |= {"prompts": [[1, 2, 3], [4, 5]], "text": "a text"}
    assert "3 tokens of 2 prompts" in notebook.cell("%djinn_loss --prompts prompts")
    notebook.cell("%djinn_loss --text-from text")
    assert last(notebook, requests.Tokenize).text == "a text"
    assert "Give the text once" in notebook.fails("%djinn_loss --prompts prompts --text-from text")
    notebook.cell("%djinn_steer 4 scale 0.5")
    assert "\nunder rule 1: " in notebook.cell("%djinn_loss")
    notebook.shell.user_ns["prompts"] = [[1, 2], [3]]
    assert "Prompt 1 (counted from 0) has one token" in notebook.fails("%djinn_loss --prompts prompts")
