"""`%djinn_add_adapter` reads a folder and sends its matrices; `%djinn_adapter` has a session compute with it."""

from __future__ import annotations

from pathlib import Path

from djinn_jupyter.wire import requests
from tests import adapters
from tests.families import build
from tests.magics.conftest import Notebook, last
from tests.magics.test_completion import complete


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


def test_what_cannot_be_read_is_one_sentence(notebook: Notebook, tmp_path: Path) -> None:
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
