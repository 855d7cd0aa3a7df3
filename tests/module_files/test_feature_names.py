"""Names of features in files: the forms that are read, and one sentence for each that is wrong."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.demo import NAMES_PATH
from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files import feature_names
from djinn_jupyter.modules.files.feature_names import LONGEST, read_names

# Without the time: what is compressed names a test, and two workers collect it at two moments.
gzipped = partial(gzip.compress, mtime=0)

HOSTILE = "$a$ <b> <a href=javascript:x> </script> \u202eright to left \U0001f600"


def explained(index: int, text: str | None, layer: str = "4-res-jb", **more: Any) -> dict[str, Any]:
    """A row as Neuronpedia's exports have it: its index is a text."""
    said = {"modelId": "gpt2-small", "layer": layer, "index": str(index), "description": text}
    return {**said, "typeName": "oai_token-act-pair", "explanationModelName": "gpt-4o-mini", **more}


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


EXPORT = lines(explained(17, "capitals "), explained(3, HOSTILE), explained(17, "another"), explained(5, ""))
TOLD = {17: "capitals", 3: HOSTILE}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("export.jsonl", EXPORT),
        ("export.jsonl.gz", gzipped(EXPORT)),
        ("export.json", EXPORT),
        ("list.json", json.dumps([explained(17, "capitals"), explained(3, HOSTILE)]).encode()),
        ("answer.json", json.dumps({"explanations": [explained(17, "capitals"), explained(3, HOSTILE)]}).encode()),
        ("mapping.json", json.dumps({"17": "capitals", "3": HOSTILE}, indent=1).encode()),
        ("plain.csv", f'17,capitals\n3,"{HOSTILE}"\n'.encode()),
        ("named.csv", f'layer,feature,label\n4,17,capitals\n4,3,"{HOSTILE}"\n'.encode("utf-8-sig")),
        ("named.tsv.gz", gzipped(f"index\tname\r\n17\tcapitals\r\n3\t{HOSTILE}\r\n".encode())),
    ],
)
def test_each_form_has_the_same_names_literally(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert read_names(tmp_path / name, 48, 4).names == TOLD


def test_batches_of_a_folder_are_read_in_order(tmp_path: Path) -> None:
    for number, row in ((10, explained(1, "late")), (2, explained(1, "early"))):
        (tmp_path / f"batch-{number}.jsonl.gz").write_bytes(gzipped(lines(row)))
    read = read_names(tmp_path, 48, 4)
    assert (read.names, read.models) == ({1: "early"}, ("gpt2-small",))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match=r"has no file of names, such as batch-0\.jsonl\.gz"):
        read_names(empty, 48, 4)


def test_the_names_of_the_demos_features_are_read() -> None:
    told = json.loads(NAMES_PATH.read_text())["names"]
    assert read_names(NAMES_PATH, 1024, 4).names == {one["feature"]: one["name"] for one in told}


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.jsonl", lines(explained(1, "x"), explained(48, "y")), "line 2: the module has 48 features, from 0, and no"),
        ("a.jsonl", lines(explained(1, "x")) + b"{\n", "line 2: it is no JSON"),
        ("a.jsonl", b"[1]\n", "line 1: it is no object with an index and a name"),
        ("a.jsonl", b'\n{"index": -1, "name": "x"}\n', "line 2: the module has 48 features, from 0, and no feature -1"),
        ("a.jsonl", b'{"index": true, "name": "x"}\n', "line 1: it has no index of a feature"),
        ("a.jsonl", b'{"index": 1.5, "name": "x"}\n', "line 1: it has no index of a feature"),
        ("a.jsonl", b'{"index": "' + b"9" * 5000 + b'", "name": "x"}\n', "line 1: it has no index of a feature"),
        ("a.jsonl", b'{"index": 1, "name": 5}\n', "line 1: the name is no text"),
        ("a.jsonl", b'{"index": 1, "nome": "x"}\n', "line 1: it has no description, name, label or explanation"),
        ("a.jsonl", lines(explained(1, "x", layer="7-res-jb")), "line 1: it is of layer '7-res-jb', and the module is"),
        ("a.jsonl", lines(explained(1, "x")) + b"\xff\n", "line 2: it is not UTF-8"),
        ("a.jsonl", b"", "has no name of a feature: each line is an object such as"),
        ("a.json", b"5", "is no file of names"),
        ("a.json", b'[{"index": 1, "name": "x"}, 7]', "entry 2: it is no object"),
        ("a.json", b'{"one": "x"}', "'one': it has no index of a feature"),
        ("a.json", b"[" * 100_000, "is no file of names"),
        ("a.csv", b"index,name\n1,x\n99,y\n", "row 3: the module has 48 features, from 0, and no feature 99"),
        ("a.csv", b"1\n", "row 1: it has no description, name, label or explanation"),
        ("a.jsonl.gz", gzipped(EXPORT)[:-20], "cannot be read"),
        ("a.jsonl.gz", gzipped(EXPORT)[:20] + b"x" * 30, "cannot be read"),
    ],
)
def test_a_wrong_row_is_one_sentence_with_its_place(name: str, data: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError) as refused:
        read_names(tmp_path / name, 48, 4)
    assert sentence in str(refused.value)
    assert str(tmp_path / name) in str(refused.value)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.csv cannot be read: No such file"):
        read_names(tmp_path / "missing.csv", 48, 4)


def test_long_names_are_cut_and_counted(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_bytes(lines(explained(1, "x" * 10_000), explained(2, "y" * LONGEST)))
    read = read_names(tmp_path / "long.jsonl", 48, 4)
    assert (read.names, read.cut) == ({1: "x" * (LONGEST - 1) + "\u2026", 2: "y" * LONGEST}, 1)


def test_a_file_that_grows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_names, "MOST_BYTES", 10_000)
    monkeypatch.setattr(feature_names, "MOST_WHOLE", 5000)
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzipped(lines(*[explained(1, "x")] * 200)))
    with pytest.raises(UsageError, match=r"more than 9\.77 KiB of text: it is no file of names"):
        read_names(tmp_path / "bomb.jsonl.gz", 48, 4)
    (tmp_path / "bomb.json").write_text("[\n" + "[],\n" * 2000)
    with pytest.raises(UsageError, match=r"more than 4\.88 KiB of JSON: write one object in each line"):
        read_names(tmp_path / "bomb.json", 48, 4)
    (tmp_path / "line.jsonl.gz").write_bytes(gzipped(lines(explained(1, "x")) + b"a" * 20_000))
    with pytest.raises(UsageError, match=r"line\.jsonl\.gz, line 2: it has more than 4\.88 KiB\.$"):
        read_names(tmp_path / "line.jsonl.gz", 48, 4)
