"""The sessions to close, by name or by a pattern of displayed names, and the rows of a batch with its session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from djinn_jupyter.api.batches import rows_below, rows_by_batch
from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.link.channel import Channel, all_sessions
from djinn_jupyter.link.naming import called, distinct_labels, label, notebook_path, the_one
from djinn_jupyter.wire.base import is_anothers, person_of
from djinn_jupyter.wire.nouns import SessionDescription
from djinn_jupyter.wire.texts import few_of, in_quotes, natural_order

_WILD: Final = frozenset("*?[")


def sessions_to_close(channel: Channel, names: Sequence[str], *, force: bool) -> dict[str, list[str]]:
    """Return the sessions that `names` mean, each with its rows. Patterns and rows are those of this notebook, and of
    others only with `force`. UnknownSession where one of the names means nothing."""
    there = all_sessions(channel)
    own = [one.name for one in there if force or _is_own(one, channel.holder)]
    shown = distinct_labels(one.name for one in there)
    found = dict.fromkeys(name for word in names for name in _meant(word, shown, own))
    rows, may = rows_by_batch(there), frozenset(own)
    return _with_rows(found, {batch: [row.name for row in rows[batch] if row.name in may] for batch in rows})


def _is_own(session: SessionDescription, holder: str) -> bool:
    return person_of(session.name) is None and not is_anothers(session, holder, notebook_path())


def _meant(word: str, shown: dict[str, str], own: Sequence[str]) -> list[str]:
    """Return the session of that name, or those of `own` that the pattern matches."""
    if called(word, shown) or not set(word) & _WILD:
        return [the_one(word, shown)]
    matched = [name for name, short in shown.items() if fnmatchcase(short, word) or fnmatchcase(label(name), word)]
    found = [name for name in own if name in set(matched)]
    if not matched:
        raise UnknownSession(f"No session matches {in_quotes(word)}.")
    if not found:
        raise UnknownSession(
            f"No session of this notebook matches {in_quotes(word)}; add --force (in Python force=True) to close those "
            f"of others too: {few_of((shown[name] for name in matched), word)}."
        )
    return found


def _with_rows(names: Iterable[str], rows: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return each session with its rows and theirs; a row of another one here stands with that."""
    found = {name: list(rows_below(name, rows)) for name in names}
    within = {row for each in found.values() for row in each}
    return {name: sorted(each, key=natural_order) for name, each in found.items() if name not in within}
