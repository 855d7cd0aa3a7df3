"""Sessions side by side are told apart by as little of their paths as it takes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.wire.texts import MOST_NAMED, few_of, natural_order, told_apart

FOLDERS = st.lists(st.sampled_from(("a", "b", "team")), max_size=4).map("/".join)
NAMES = st.one_of(
    st.builds(lambda folder, stem: f"/{folder}/{stem}.ipynb".replace("//", "/"), FOLDERS, st.sampled_from(("x", "y"))),
    st.sampled_from(("x", "fork", "a/x")),
)


def test_two_notebooks_of_one_name_are_told_apart_by_their_folders() -> None:
    names = ("/ada/one/quick.ipynb", "/ada/two/quick.ipynb", "/ada/two/other.ipynb", "fork")
    assert list(told_apart(names).values()) == ["one/quick", "two/quick", "other", "fork"]


def test_folders_of_one_name_need_one_more() -> None:
    assert list(told_apart(("/ada/team/x.ipynb", "/bob/team/x.ipynb")).values()) == ["ada/team/x", "bob/team/x"]


@given(st.sets(NAMES, max_size=8))
def test_no_two_names_are_shown_alike(names: set[str]) -> None:
    """Except a session named as another's path is shown, which an engine refuses to open."""
    shown = told_apart(names)
    assert set(shown) == names
    paths = [text for name, text in shown.items() if name.endswith(".ipynb")]
    assert len(set(paths)) == len(paths)


def test_names_are_in_the_order_of_the_sidebar() -> None:
    """Digits of any length are compared; Python reads no number of more than 4,300, and none in a superscript two."""
    named = ["1\u00b2", "a", "a/2", "a/10", "a-fork", "B", "b/0", "resid_post.2", "resid_post.10", "x" + "9" * 5000]
    keys = [natural_order(name) for name in named]
    assert all(earlier < later for earlier, later in pairwise(keys))


def test_of_many_names_a_sentence_has_those_like_the_one_that_was_sought_and_a_few_others() -> None:
    rows = [f"s/{row}" for row in range(64)]
    assert few_of([*rows, "paris"], "pariss") == "paris, s/0, s/1, s/2, s/3, s/4, s/5, s/6 and 57 more"
    assert few_of(rows[:MOST_NAMED], "x").endswith("s/6, s/7")
    assert few_of([], "x") == "none"
