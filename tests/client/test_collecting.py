"""`engine.collect` against an engine in this process, and what is read back: numpy, torch and datasets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.runs import given_prompts
from djinn_jupyter.errors import MissingDependency, StorageFailed, UnknownSite, UsageError
from tests.engine.collecting import plain_collection
from tests.families import build
from tests.threads import one_thread

PROMPTS = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5)]
LAYERS = 3


@pytest.fixture(scope="module")
def plain() -> list[list[torch.Tensor]]:
    with one_thread():
        model = build("llama", layers=LAYERS)
        return [plain_collection.residuals(model, prompt) for prompt in PROMPTS]


def test_one_position_of_each_prompt_is_a_row(
    engine: RemoteEngine, plain: list[list[torch.Tensor]], tmp_path: Path
) -> None:
    done: list[int] = []
    acts = dj.collect(
        engine,
        PROMPTS,
        ["resid_post.1"],
        to=tmp_path,
        positions=-1,
        shard_prompts=2,
        mode="exact",
        on_progress=done.append,
    )
    expected = np.stack([layers[1][-1].numpy() for layers in plain])
    values = acts["resid_post.1"]
    assert (len(acts), acts.complete, list(acts), done[-1]) == (3, True, ["resid_post.1"], 3)
    assert (values.shape, values.dtype, len(values)) == ((3, expected.shape[1]), np.float32, 3)
    assert np.array_equal(np.asarray(values), expected)
    assert np.array_equal(values[-1], expected[2])
    assert np.array_equal(values[[2, 0]], expected[[2, 0]])
    assert np.array_equal(values[1:], expected[1:])
    assert values[3:].shape == (0, expected.shape[1])
    assert [tokens.tolist() for tokens in acts.tokens] == [list(prompt) for prompt in PROMPTS]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-00000.safetensors", "shard-00001.safetensors"]
    assert [one.name for one in engine.sessions()] == []
    assert isinstance(values[1], np.memmap)
    assert not values[1].flags.writeable


def test_all_positions_have_a_row_for_each_token(
    engine: RemoteEngine, plain: list[list[torch.Tensor]], tmp_path: Path
) -> None:
    acts = engine.collect(PROMPTS, "resid_post.*", to=tmp_path, shard_prompts=2, mode="exact")
    assert acts.sites == ("resid_post.0", "resid_post.1", "resid_post.2")
    values = acts["resid_post.2"]
    assert np.asarray(values).shape[0] == 11
    for number, layers in enumerate(plain):
        assert np.array_equal(values[number], layers[2].numpy())
    assert [part.shape[0] for part in values[:]] == [5, 2, 4]


def test_tensors_have_the_bits_in_every_dtype(
    engine: RemoteEngine, plain: list[list[torch.Tensor]], tmp_path: Path
) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        acts = engine.collect(PROMPTS, "resid_post.1", to=tmp_path / name, positions=[0, -1], dtype=name, mode="exact")
        tensors = acts["resid_post.1"].torch()
        assert len(tensors) == 3
        assert torch.equal(tensors[1], plain[1][1].to(dtype))
        assert torch.equal(tensors[:2], torch.stack([layers[1][[0, -1]] for layers in plain[:2]]).to(dtype))


def test_a_dataset_reads_rows_when_they_are_asked_for(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dataset(SimpleNamespace):
        @classmethod
        def from_dict(cls, columns: dict[str, list[int]]) -> Dataset:
            return cls(columns=columns)

        def set_transform(self, rows: Any) -> None:
            self.rows = rows

    acts = engine.collect(PROMPTS, "resid_post.1", to=tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Dataset=Dataset))
    made = acts.dataset()
    assert made.columns == {"prompt": [0, 1, 2]}
    batch = made.rows({"prompt": [2, 1]})
    assert [row.tolist() for row in batch["tokens"]] == [list(PROMPTS[2]), list(PROMPTS[1])]
    assert np.array_equal(batch["resid_post.1"][0], acts["resid_post.1"][2])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match="pip install datasets"):
        acts.dataset()


def test_texts_and_a_file_of_them_are_tokenized(engine: RemoteEngine, tmp_path: Path) -> None:
    texts = [engine.detokenize(prompt) for prompt in PROMPTS]
    file = tmp_path / "prompts.txt"
    one = engine.collect(texts, "z.1", to=tmp_path / "one", positions=-1)
    file.write_text("\n".join(texts) + "\n\n", encoding="utf-8-sig")  # as editors of Windows write it
    other = engine.collect(file, "z.1", to=tmp_path / "other", positions=-1)
    assert [tokens.tolist() for tokens in one.tokens] == [list(engine.tokenize(text).tokens) for text in texts]
    assert one.shards[0].path.read_bytes() == other.shards[0].path.read_bytes()


def test_a_folder_with_a_shard_missing_or_twice_is_refused(engine: RemoteEngine, tmp_path: Path) -> None:
    shards = engine.collect(PROMPTS, "z.1", to=tmp_path, shard_prompts=1).shards
    second = shards[1].path.read_bytes()
    shards[1].path.write_bytes(shards[0].path.read_bytes())
    with pytest.raises(StorageFailed, match="is not shard 1 of this collection"):
        dj.Activations(tmp_path)
    shards[1].path.unlink()
    with pytest.raises(StorageFailed, match="one is missing or foreign"):
        dj.Activations(tmp_path)
    shards[1].path.write_bytes(second)
    assert len(dj.Activations(tmp_path)) == 3
    shards[1].path.write_bytes(b"nothing of ours")
    with pytest.raises(StorageFailed, match="is no shard of a collection"):
        dj.Activations(tmp_path)


def test_shards_are_in_order_where_their_numbers_have_more_digits(engine: RemoteEngine, tmp_path: Path) -> None:
    engine.collect(PROMPTS, "resid_post.1", to=tmp_path, shard_prompts=1)
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        path.rename(tmp_path / f"shard-{99_998 + number}.safetensors")
    assert [tokens.tolist() for tokens in dj.Activations(tmp_path).tokens] == [list(prompt) for prompt in PROMPTS]


def test_what_cannot_be_collected_leaves_nothing_open(engine: RemoteEngine, tmp_path: Path) -> None:
    with pytest.raises(UnknownSite):
        engine.collect(PROMPTS, "resid_past.1", to=tmp_path)
    with pytest.raises(UsageError, match="There is no collection"):
        dj.Activations(tmp_path)
    assert engine.sessions() == ()


def test_a_file_that_has_no_prompts_is_one_sentence(tmp_path: Path) -> None:
    mixed = ["a text", [1, 2], {"prompt": "b"}, {"text": "c", "label": 1}, {"tokens": [3]}]
    (tmp_path / "p.json").write_text(json.dumps(mixed))
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(one) for one in mixed))
    expected = ["a text", [1, 2], "b", "c", [3]]
    assert list(given_prompts(tmp_path / "p.json")) == list(given_prompts(tmp_path / "p.jsonl")) == expected
    for name, text, said in [
        ("p.txt", "\n \n", "has no prompts"),
        ("p.json", "", "has no prompts"),
        ("p.json", "{}", "is not a list of texts"),
        ("p.json", "[3]", "prompt 0 of .* is neither a text"),
        ("p.jsonl", '{"text": 3}\n', "line 1 of .* is neither a text"),
        ("p.jsonl", '"a"\n{', "line 2 of .* is no JSON"),
        ("p.txt", b"\xff\xfe", "is not text in UTF-8"),
    ]:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UsageError, match=said):
            list(given_prompts(tmp_path / name))
        with pytest.raises(UsageError, match="could not be read"):
            list(given_prompts(tmp_path / "missing"))


def test_losses_and_logits_of_all_positions(engine: RemoteEngine) -> None:
    losses = engine.loss(PROMPTS)
    assert (len(losses), [len(one) for one in losses]) == (3, [4, 1, 3])
    assert losses.loss == pytest.approx(np.concatenate(list(losses)).mean())
    assert losses.perplexity == pytest.approx(np.exp(losses.loss))
    session = engine.session("mine")
    finished = session.run(PROMPTS[0], max_new_tokens=0, logits="all")
    logits = torch.from_numpy(finished.logits)
    assert logits.shape[0] == 5
    expected = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(PROMPTS[0][1:]), reduction="none")
    assert np.array_equal(losses[0], expected.numpy())
    assert np.array_equal(session.loss()[0], losses[0])
    assert np.array_equal(session.loss([PROMPTS[2]])[0], losses[2])
    session.steer("resid_post.1", dj.zero())
    assert not np.array_equal(session.loss()[0], losses[0])
    assert np.array_equal(finished.logits, logits.numpy())
    assert np.array_equal(engine.loss([PROMPTS[0]])[0], losses[0])
    assert session.run(PROMPTS[0], max_new_tokens=0).logits.shape == (logits.shape[1],)
    assert [one.name for one in engine.sessions()] == ["mine"]
    with pytest.raises(UsageError, match=r"Prompt 0 .* has one token"):
        engine.loss([[5]])
    with pytest.raises(UsageError, match="There are no prompts"):
        engine.loss([])


def test_a_flipped_bit_anywhere_in_a_shard_is_told(engine: RemoteEngine, tmp_path: Path) -> None:
    """In the values, the tokens, or what the file says of itself: where it opens, it has the numbers that it had."""
    acts = engine.collect([(9, 8, 7), (4, 4)], ["resid_post.1", "z.1"], to=tmp_path)
    values = {site: [np.asarray(one).copy() for one in acts[site]] for site in acts}
    said = acts.shards[0].note
    [path] = tmp_path.glob("*.safetensors")
    whole = path.read_bytes()
    begin = acts.shards[0].begin
    for at in (*range(8, begin, 37), *range(begin, len(whole), 101), len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            found = dj.Activations(tmp_path)
            read = {site: [np.asarray(one) for one in found[site]] for site in found}
        except StorageFailed:
            continue
        assert at < begin, at
        assert {name: found.shards[0].note.get(name) for name in said if name != "written"} == {
            name: value for name, value in said.items() if name != "written"
        }
        assert all(
            np.array_equal(one, was) for site in values for one, was in zip(read[site], values[site], strict=True)
        )
