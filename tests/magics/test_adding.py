"""`%djinn_add_module` reads a folder, sends its tensors and says what the module is."""

from __future__ import annotations

from pathlib import Path

from djinn_jupyter.wire import requests
from tests import saes, transcoders
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


def test_the_point_is_that_of_the_files(notebook: Notebook, tmp_path: Path) -> None:
    saes.saved(tmp_path, saes.drawn(8), metadata={"hook_name": "blocks.3.hook_resid_post"})
    assert "leave out the error term" in notebook.cell(f"%djinn_add_module sae {tmp_path} --no-error-term")
    assert last(notebook, requests.AddModule).at == "blocks.3.hook_resid_post"


def test_what_cannot_be_read_is_one_sentence(notebook: Notebook, tmp_path: Path) -> None:
    assert "There is no folder" in notebook.fails(f"%djinn_add_module sae {tmp_path / 'missing'}")
    assert "has neither cfg.json" in notebook.fails(f"%djinn_add_module sae {tmp_path}")
    saes.saved(tmp_path, saes.drawn(8))
    assert "does not say where its module was trained" in notebook.fails(f"%djinn_add_module sae {tmp_path}")
    saes.saved(tmp_path, saes.drawn(8), metadata={"hook_name": "somewhere else"})
    assert "which is no point here" in notebook.fails(f"%djinn_add_module sae {tmp_path}")
    assert "is no added module" in notebook.fails("%djinn_remove_module sae.all")
