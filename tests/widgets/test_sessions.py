"""Lists of sessions and engines: rows folded under their batch, sessions that no one has open dimmed, literal texts."""

from __future__ import annotations

import pickle
import re
from html import unescape

from hypothesis import given
from hypothesis import strategies as st

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.loading import EngineList
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.texts import label
from tests.magics.double import EngineDouble
from tests.widgets import samples

HOSTILE = ["$a$", "<b>", "</script>", "a\u202eb", "\U0001f47e", "<a href=javascript:1>", "x" * 500]


def test_the_rows_of_a_batch_are_one_line_that_opens() -> None:
    sessions = [*samples.batch("rome", 40, tokens=3), samples.session("rome-2")]
    view = views.sessions_view(sessions, present=None, mine={"rome-2"})
    lines = [line.split() for line in view.plain.splitlines()[1:]]
    assert [line[0] for line in lines] == ["rome", "rome/0", "rome-2"]
    assert lines[1] == ["rome/0", "...", "rome/39", "40", "rows,", "40", "idle", "120", "0", "B"]
    assert view.html.count("<details>") == 1
    inside = view.html.partition("</summary>")[2].partition("</details>")[0]
    assert [f"rome/{number}" for number in range(40)] == re.findall(r"rome/\d+", inside)


def test_the_batch_of_the_row_in_use_is_open() -> None:
    view = views.sessions_view(samples.batch("rome", 3), present="rome/2", mine=set())
    assert '<details open="">' in view.html
    assert view.plain.splitlines()[2].startswith("\u25b8  rome/0 ... rome/2")


def test_rows_of_a_closed_session_are_one_line_and_a_single_row_is_itself() -> None:
    view = views.sessions_view(samples.batch("rome", 2)[1:] + samples.batch("oslo", 1), present=None, mine=set())
    assert [line.split()[0] for line in view.plain.splitlines()[1:]] == ["oslo", "oslo/0", "rome/0"]
    assert "rome/0 ... rome/1" in view.plain


def test_what_no_one_has_open_is_dimmed() -> None:
    sessions = [samples.session("left", holder=None), samples.session("held"), samples.session("used", holder=None)]
    html = views.sessions_view(sessions, present="used", mine=set()).html
    assert 'dj-long"><span class="dj-soft">left</span></td>' in html
    assert {">held</td>", ">used</td>"} <= {f">{found}</td>" for found in re.findall(r'dj-long">(\w+)</td>', html)}


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c.ipynb", "d/c.ipynb", *HOSTILE[:4]]), st.integers(0, 5)), unique=True
)


@given(ROWS, st.integers(0, 300))
def test_each_session_is_shown_once(named: list[tuple[str, int]], more: int) -> None:
    names = [name if not row else f"{name}/{row}" for name, row in named] + [f"more {n}" for n in range(more)]
    view = views.sessions_view([samples.session(name) for name in names], present=None, mine=set())
    assert len(view.plain) <= 2000
    lines = view.plain.splitlines()[1:]
    rows = [int(found[1]) for line in lines if (found := re.search(r"  (\d+) rows, ", line))]
    if "are left out" not in view.plain and names:
        assert len(lines) - len(rows) + sum(rows) == len(names)
    html = unescape(view.html)
    assert len(names) > 200 or all(label(name) in html for name in names)
    assert not [tag for tag in ("<b>", "</script", "<a ") if tag in view.html]


def test_the_list_of_an_engine_is_its_card() -> None:
    double = EngineDouble()
    for one in [samples.session("mine", in_use=True), *samples.batch("other", 2, holder="kernel-2")]:
        double.sessions[one.name] = one
    listed = RemoteEngine(double.channel).sessions()
    bundle = listed._repr_mimebundle_()
    assert bundle["text/plain"].splitlines()[1].startswith("\u25b8  mine")
    assert "2 rows" in bundle["text/html"]
    assert [one.name for one in listed] == ["mine", "other", "other/0", "other/1"]
    assert pickle.loads(pickle.dumps(listed))._repr_mimebundle_() == bundle  # noqa: S301  our own
    assert RemoteEngine(EngineDouble().channel).sessions()._repr_mimebundle_()["text/plain"] == "no sessions"


def test_engines_are_a_table() -> None:
    entries = [samples.entry(listens="tcp://0.0.0.0:7000"), samples.entry(commands="tcp://there:1")]
    view = EngineList(entries)._repr_mimebundle_()
    head, here, there = view["text/plain"].splitlines()
    assert head.split() == ["model", "dtype", "device", "attention", "process", "up", "listens", "on"]
    assert "4711 on here" in here
    assert here.endswith("tcp://0.0.0.0:7000")
    assert "tcp://there:1" in there
    assert "&lt;b&gt;demo" in view["text/html"]
    assert EngineList()._repr_mimebundle_()["text/plain"] == "no engine runs"
    assert type(dj.engines()) is EngineList
