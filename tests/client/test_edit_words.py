"""Each kind of edit that crosses the wire has a constructor and words, and each word reaches its own kind."""

from __future__ import annotations

from typing import get_args

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import edits
from djinn_jupyter.api.edits import KINDS, parse_edit
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.edits import Edit

WORDS = {"number": "0.5", "bound": "1", "value": "2", "session": "paris"}


def test_every_kind_of_the_wire_has_words_and_a_constructor_of_the_package() -> None:
    made = [kind.make.__annotations__["return"].replace("Patch", "PatchFrom") for kind in KINDS.values()]
    assert sorted(made) == sorted(edit.__name__ for edit in get_args(Edit))
    assert {kind.make.__name__ for kind in KINDS.values()} == set(edits.__all__)
    assert all(getattr(dj, kind.make.__name__) is kind.make for kind in KINDS.values())
    assert set(edits.__all__) <= set(dir(dj))


@pytest.mark.parametrize("name", KINDS)
def test_its_words_make_that_kind_and_no_other(name: str) -> None:
    kind = KINDS[name]
    made = parse_edit([name, *(WORDS[word] for word in kind.words)], value=float, find=str)
    assert type(made).__name__ == kind.make.__annotations__["return"]
    assert kind.example.split()[0] == name
    with pytest.raises(UsageError, match=f"{name} takes {len(kind.words)} argument"):
        parse_edit([name, *["1"] * (len(kind.words) + 1)], value=float, find=str)


@pytest.mark.parametrize(("owner", "key"), [(name, one.key) for name, kind in KINDS.items() for one in kind.options])
def test_an_option_belongs_to_its_kind_alone(owner: str, key: str) -> None:
    for name, kind in KINDS.items():
        words = [name, *(WORDS[word] for word in kind.words)]
        if name == owner:
            bare = parse_edit(words, value=float, find=str)
            assert parse_edit(words, value=float, find=str, options={key: "3"}) != bare
        else:
            with pytest.raises(UsageError, match=f"belongs? to {owner}, not to {name}"):
                parse_edit(words, value=float, find=str, options={key: "3"})
