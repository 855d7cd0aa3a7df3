"""Sessions that were forked from one another, as an engine would tell of them."""

from __future__ import annotations

from djinn_jupyter.wire.nouns import Origin, StopDescription
from djinn_jupyter.wire.readings import Branch


def stop(index: int, number: int, site: str, *, edited: bool = False) -> StopDescription:
    return StopDescription(
        index=index, site=site, step=0, position=4, reason="breakpoint", edited=edited, number=number
    )


def branches() -> tuple[Branch, ...]:
    first, second = stop(0, 10, "resid_post.2"), stop(1, 11, "resid_post.4")
    return (
        Branch(session="work/paris.ipynb", state="idle", stops=(first, second), present=None, tokens=8, text=" Paris."),
        Branch(
            session="zeroed",
            state="paused",
            stops=(first, stop(1, 20, "z.3[1]", edited=True), stop(2, 21, "resid_post.6")),
            present=2,
            tokens=5,
            text=" is",
            forked_from=Origin(session="work/paris.ipynb", stop=10, tokens=5),
        ),
        Branch(
            session="orphan",
            state="running",
            stops=(),
            present=None,
            tokens=9,
            text=" is",
            forked_from=Origin(session="closed", stop=None, tokens=9),
        ),
    )
