"""A study: results, tables, figures and text of a piece of work in one file, which is read without an engine, is
checked, and is computed again with one."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.api import arguments, interrupts, reproducing, tables
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.result_files import FAULTS, FOLDER, STUDY, Reproducible, Reproduction, bytes_of, put
from djinn_jupyter.api.study_files import (
    CARD,
    LONGEST_NOTE,
    MANIFEST,
    PAGE,
    DescribedItem,
    Manifest,
    member_of,
    opened,
    sha,
    showable,
    zipped,
)
from djinn_jupyter.displayed import Shown
from djinn_jupyter.errors import DjinnError, EngineError, UsageError
from djinn_jupyter.files import contents_of
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.provenance import DIGESTS, Provenance
from djinn_jupyter.wire.texts import few_of, in_quotes, sendable

TABLE, PICTURE = "json", "png"
NOTE: Final = "note"
SHORT_DIGEST: Final = 12
ADDED: Final = "a result, a table (of pandas, or a dict of lists), a figure of matplotlib, or what displays a card"


class KeptTable(tables.Tabular):
    """A table of a study that is no result: lists by column, as they were added."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {str(name): list(column) for name, column in columns.items()}
        if len({len(column) for column in self._columns.values()}) > 1:
            raise UsageError("The columns of a table have the same length; these have not.")

    def columns(self) -> dict[str, list[Any]]:
        """Return the lists by column."""
        return {name: list(column) for name, column in self._columns.items()}


class StudyItem(tables.Tabular):
    """An item of a study: a result, a table, a figure, another card, or a note. It shows itself as it was added: a
    result draws its card from its values, and a card without values is in the study's page."""

    _view: ClassVar[str] = "study_item_view"

    def __init__(self, described: DescribedItem, parts: Mapping[str, bytes]) -> None:
        self._described, self._parts = described, parts

    @property
    def title(self) -> str:
        """The title, by which `study[title]` finds it."""
        return self._described.title

    @property
    def kind(self) -> str:
        """The class of what was added, or "note"."""
        return self._described.kind

    @property
    def note(self) -> str:
        """The text beside it, in Markdown."""
        return self._described.note

    @property
    def text(self) -> str:
        """Its card as plain text."""
        return self._described.text

    @property
    def unmade(self) -> str:
        """The reason why nothing computes it again; empty for a result with a recipe, and for a note."""
        return self._described.unmade

    @property
    def model(self) -> str | None:
        """The model that computed it, with the beginning of its weights' digest; None without a recipe."""
        return None if self._described.by is None else spelled_model(self._described.by)

    @property
    def nbytes(self) -> int:
        """The bytes of its parts."""
        return sum(map(len, self._parts.values()))

    @property
    def picture(self) -> bytes | None:
        """The figure as PNG; None for other kinds."""
        return self._parts.get(PICTURE)

    @cached_property
    def result(self) -> Any:
        """The result, with the same bits, or the table; UsageError for a note, a figure or a card without values."""
        if TABLE in self._parts:
            return _table_in(self._parts[TABLE], self.title)
        kind, data = self._file
        return kind.from_file(data, in_quotes(self.title))

    @property
    def _file(self) -> tuple[type[Reproducible], bytes]:
        """Return the kind of its result, and the bytes of the file."""
        part = next((one for one in self._parts if one not in (CARD, TABLE, PICTURE)), None)
        if part is None:
            raise UsageError(f"{in_quotes(self.title)} is a {self.kind} and has no values; its card is in the page.")
        kind = next((one for ending, one in reproducing.kinds().items() if ending.removeprefix(".") == part), None)
        if kind is None:
            raise UsageError(f"{in_quotes(self.title)} is of an unknown kind: {reproducing.OF_OTHERS}")
        return kind, self._parts[part]

    @property
    def has_values(self) -> bool:
        """True for a result and a table."""
        return bool(self._parts.keys() - {CARD, PICTURE})

    @property
    def values(self) -> Any:
        """The values of the result, as numpy arrays. UsageError where it has none."""
        found = self.result
        if isinstance(found, KeptTable):
            raise UsageError(f"{in_quotes(self.title)} is a table: columns() and to_pandas() have its values.")
        return found.values

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the values follow from. UsageError where nothing computes it again."""
        if self._described.by is None:
            raise UsageError(f"Nothing computes {in_quotes(self.title)} again: {self.unmade or 'it is a note'}.")
        found: dict[str, Any] = self.result.recipe
        return found

    def columns(self) -> dict[str, list[Any]]:
        """Return the result, or the table, as lists by column."""
        found: dict[str, list[Any]] = self.result.columns()
        return found

    def _bundle(self) -> dict[str, Any]:
        try:
            shown = self.result if self.has_values else None
        except UsageError:  # of a method that is not installed here
            shown = None
        bundle: dict[str, Any] = super()._bundle() if shown is None else shown._bundle()
        return bundle

    def __repr__(self) -> str:
        return "\n".join(filter(None, (f"{self.title} ({self.kind})", self.note, self.text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """The outcome for one item. `outcome` is "ok" or "wrong" of a check; "same", "other", "another model", "refused" or
    "no recipe" of a reproduction, whose comparison is `found`. `message` is the outcome as a sentence."""

    number: int
    title: str
    outcome: str
    message: str
    found: Reproduction | None = None


class StudyReport(tables.Tabular):
    """The outcome of `study.check()` or `study.reproduce(engine)`, by item: `rows`. `ok` is True where nothing is
    wrong, and all items with a recipe have the same bits."""

    _view = "study_report_view"

    def __init__(self, what: str, rows: Sequence[StudyRow]) -> None:
        self.what, self.rows = what, tuple(rows)
        self.ok = all(row.outcome in ("ok", "same", "no recipe") for row in self.rows)

    def columns(self) -> dict[str, list[Any]]:
        """Return the items as lists by column: number, title, outcome, and the outcome as a sentence."""
        named = ("number", "title", "outcome", "message")
        return tables.in_columns(named, [[getattr(row, name) for name in named] for row in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int | str) -> StudyRow:
        return self.rows[_at([row.title for row in self.rows], item)]

    def __repr__(self) -> str:
        lines = [f"{row.number}  {row.title}: {row.message}" for row in self.rows]
        return "\n".join([self.headline, *lines])

    @property
    def headline(self) -> str:
        """The outcome of all items in a line."""
        counts = Counter(row.outcome for row in self.rows)
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no items"
        return f"{self.what}: {told}"


class Study(tables.Tabular):
    """A piece of work: `items` in their order, by title and by number. `path` is the file that it was read from or
    saved to, None before. An item is kept as it is when it is added."""

    _view = "study_view"

    def __init__(self, name: str) -> None:
        self.name = showable(name, "The name of a study")
        self.items: tuple[StudyItem, ...] = ()
        self.path: Path | None = None
        self._there = ""  # the digest of the file that this study read or wrote

    @arguments.typed
    def add(self, result: object, title: str | None = None, note: str = "") -> None:
        """Add a result, with a note in Markdown. Under a title that is there it replaces that item; without a title the
        same result again stays the item that it is. Also a table (of pandas, or a dict of lists), a figure of
        matplotlib, and whatever displays a card, which are not computed again. UsageError.

        >>> study = dj.study("capitals")
        >>> study.add(engine.loss(["The capital of France is Paris."]), title="loss")
        >>> study["loss"].values.shape
        (6,)
        """
        if isinstance(result, StudyItem):
            described, parts, title = result._described, result._parts, title or result.title
        else:
            described, parts = _described(result)
        self._put(msgspec.structs.replace(described, note=_noted(note or described.note)), parts, title)

    @arguments.typed
    def note(self, text: str, title: str | None = None) -> None:
        """Add a text in Markdown as an item of its own. UsageError for one of more than 100,000 characters."""
        if not text.strip():
            raise UsageError("A note is a text that is not empty.")
        self._put(DescribedItem(title=NOTE, kind=NOTE, note=_noted(text)), {}, title)

    def _put(self, described: DescribedItem, parts: Mapping[str, bytes], title: str | None) -> None:
        there = {one.title: number for number, one in enumerate(self.items)}
        same = {one.title: one.note for one in self.items if _content(one._described) == _content(described)}
        name = next(iter(same), _free(described.kind, there)) if title is None else showable(title, "A title")
        note = described.note or same.get(name, "")
        item = StudyItem(msgspec.structs.replace(described, title=name, note=note), dict(parts))
        at = there.get(name, len(self.items))
        self.items = (*self.items[:at], item, *self.items[at + 1 :])

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[StudyItem]:
        return iter(self.items)

    def __getitem__(self, item: int | str) -> StudyItem:
        return self.items[_at([one.title for one in self.items], item)]

    def __delitem__(self, item: int | str) -> None:
        gone = self[item]
        self.items = tuple(one for one in self.items if one is not gone)

    def columns(self) -> dict[str, list[Any]]:
        """Return the items as lists by column: number, title, kind, model (None without a recipe) and bytes."""
        rows = [(number, one.title, one.kind, one.model, one.nbytes) for number, one in enumerate(self.items)]
        return tables.in_columns(("number", "title", "kind", "model", "bytes"), rows)

    @property
    def digest(self) -> str:
        """The digest of its file, by which two copies are known to be the same: SHA-256 of all its bytes."""
        return hashlib.sha256(self._in_file()).hexdigest()

    # --- kept in a file --------------------------------------------------------------------------------------------

    @arguments.typed
    def save(self, path: str | Path | None = None, *, replace: bool = False) -> Path:
        """Write the study to `NAME.study.zip`, and return its path; without one to the file that it was read from or
        saved to. An existing other file stays unless `replace`, also where another notebook changed the file since this
        study read or wrote it. UsageError; StorageFailed."""
        target = self.path if path is None else arguments.given_path(path, "file")
        if target is None:
            raise UsageError(f"This study is in no file yet: give a path, such as study.save('study{STUDY}').")
        if not target.name.endswith(STUDY):
            raise UsageError(f"A study is kept in a file that ends in {STUDY}; {in_quotes(target.name)} does not.")
        data = self._in_file()
        put(target, data, replace=replace or (target == self.path and self._is_there(target)))
        self.path, self._there = target, sha(data)
        return target

    def _is_there(self, path: Path) -> bool:
        """Return whether the file has the bytes that this study read or wrote."""
        return path.exists() and sha(contents_of(path)) == self._there

    def _in_file(self) -> bytes:
        page: bytes = _pages().page_of(self)
        told = Manifest(name=self.name, page=sha(page), items=tuple(one._described for one in self.items))
        return zipped({MANIFEST: msgspec.json.format(msgspec.json.encode(told)), PAGE: page} | _members(self.items))

    @classmethod
    @arguments.typed
    def read(cls, path: str | Path) -> Study:
        """Read a file of `save`. UsageError where it is none, or is damaged."""
        source, data = bytes_of(path)
        manifest, members = opened(data, in_quotes(source.name))
        study = cls(manifest.name)
        study.path, study._there = source, sha(data)
        study.items = tuple(
            StudyItem(one, {part: members[member_of(number, part)] for part in one.parts})
            for number, one in enumerate(manifest.items)
        )
        return study

    # --- checked, and computed again --------------------------------------------------------------------------------

    def check(self) -> StudyReport:
        """Return for each item whether its file is read here, and is what the study says of it; needs no engine."""
        return StudyReport("Check", [_checked(number, one) for number, one in enumerate(self.items)])

    @arguments.typed
    def reproduce(self, engine: RemoteEngine) -> StudyReport:
        """Compute each result of the engine's model again by its recipe, and compare bit for bit; for the others the
        report says which model or what else they need. An error of an item is its outcome. WorkInterrupted, whose
        `kept` is the report so far; EngineUnavailable."""
        here = ask_for(engine.channel, ask.ReadProvenance()).provenance
        tried = [(number, one) for number, one in enumerate(self.items) if one.has_values]
        report = partial(StudyReport, "Reproduction")
        rows = interrupts.in_parts(
            "The reproduction",
            "items",
            tried,
            partial(_again, engine, here),
            lambda done: report(done) if done else None,
        )
        return report(rows)

    def __repr__(self) -> str:
        lines = [f"{number}  {one.title} ({one.kind})" for number, one in enumerate(self.items)]
        return "\n".join([f"Study {self.name}: {len(self.items)} item{'s' * (len(self.items) != 1)}", *lines])


@arguments.typed
def study(name: str | Path) -> Study:
    """Begin a study of this name, or read the one in a file (`NAME.study.zip`, or any Path), which needs no engine.
    UsageError.

    >>> study = dj.study("capitals")
    >>> study.note("Where does the *model* keep capitals?")
    >>> print(study)
    Study capitals: 1 item
    0  note (note)
    """
    return Study.read(name) if isinstance(name, Path) or name.endswith(".zip") else Study(name)


def spelled_model(by: Provenance) -> str:
    """Spell a model with the beginning of its weights' digest: `demo (LlamaForCausalLM, weights 1f2e3d4c5b6a)`."""
    return f"{by.model} ({by.architecture}, weights {by.weights[:SHORT_DIGEST]})"


def _noted(text: str) -> str:
    """Return a note as a file has it. Raises UsageError for a long one."""
    if len(text) > LONGEST_NOTE:
        raise UsageError(f"A note has at most {LONGEST_NOTE:,} characters, and this one {len(text):,}.")
    return sendable(text, LONGEST_NOTE)


def _free(kind: str, there: Mapping[str, int]) -> str:
    return next(name for n in range(1, len(there) + 2) if (name := kind if n == 1 else f"{kind} {n}") not in there)


def _content(described: DescribedItem) -> Any:
    """Return what makes two items the same one: for a result its file, for a note its text."""
    parts = {part: digest for part, digest in described.parts.items() if part != CARD} or described.parts
    return (described.kind, parts or described.note)


def _at(titles: Sequence[str], item: int | str) -> int:
    """Return the index of an item, by its title or number. Raises UsageError."""
    if isinstance(item, str) and item in titles:
        return titles.index(item)
    if isinstance(item, int) and -len(titles) <= item < len(titles):
        return item
    named = in_quotes(item) if isinstance(item, str) else arguments.shown(item)
    raise UsageError(f"There is no item {named}; there are: {few_of(titles, str(item))}.")


# What is kept of a value that is added.


def _described(value: Any) -> tuple[DescribedItem, dict[str, bytes]]:
    """Return an item without a title of its own, and its parts. Raises UsageError for a value of another kind."""
    kind = type(value).__name__
    by, unmade, parts = _kept(value)
    shown = _table_in(parts[TABLE], kind) if TABLE in parts and not isinstance(value, Shown) else value
    if not isinstance(shown, Shown) and PICTURE not in parts:
        raise UsageError(f"A study takes {ADDED}; {arguments.shown(value)} is none of these. study.note adds a text.")
    bundle = shown._bundle() if isinstance(shown, Shown) else {"text/plain": kind}
    if "text/html" in bundle:
        parts[CARD] = _pages().alone(bundle["text/html"])
    digests = {part: sha(data) for part, data in parts.items()}
    text = sendable(bundle["text/plain"], LONGEST_NOTE)
    return DescribedItem(title=kind, kind=kind, text=text, by=by, unmade=unmade, parts=digests), parts


def _kept(value: Any) -> tuple[Provenance | None, str, dict[str, bytes]]:
    """Return who computed a value, else why nothing computes it again, and its values."""
    if isinstance(value, Reproducible) and value.ending != FOLDER:
        by = value.computed_by
        unmade = "" if by is not None else getattr(value, "_unmade", "it is not whole")
        return by, unmade, {value.ending.removeprefix("."): value.in_file()}
    if hasattr(value, "folder"):
        return None, "it is in a folder of its own, which dj.reproduce computes again", {}
    if isinstance(value, tables.Tabular):
        return None, "a table has no recipe", {TABLE: _as_json(value.columns())}
    if hasattr(value, "columns") and hasattr(value, "to_dict"):  # a DataFrame
        return None, "a table has no recipe", {TABLE: _as_json(value.to_dict("list"))}
    if isinstance(value, Mapping):
        return None, "a table has no recipe", {TABLE: _as_json(KeptTable(_lists(value)).columns())}
    drawn = value if hasattr(value, "savefig") else getattr(value, "figure", None)
    if hasattr(drawn, "savefig"):
        return None, "a figure has no recipe", {PICTURE: _drawn(drawn)}
    return None, "a card has no recipe", {}


def _lists(value: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """Return a dict of lists or arrays as lists by column. Raises UsageError."""
    try:
        if any(isinstance(column, Mapping | str | bytes) for column in value.values()):
            raise TypeError
        found = {str(name): list(_plain(column)) for name, column in value.items()}
    except TypeError:
        raise UsageError(f"A study takes {ADDED}; the values of this dict are no lists.") from None
    if len(found) < len(value):
        raise UsageError("The columns of a table have different names; these have not.")
    return found


def _as_json(columns: Mapping[str, Sequence[Any]]) -> bytes:
    return json.dumps(msgspec.to_builtins(columns, enc_hook=lambda one: _plain(one, str))).encode()


def _plain(value: Any, other: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return an array as lists, and what is none as `other` makes it."""
    return value.tolist() if hasattr(value, "tolist") else other(value)


def _table_in(data: bytes, title: str) -> KeptTable:
    """Return the table in the bytes of a part. Raises UsageError where there is none."""
    try:
        return KeptTable(msgspec.convert(json.loads(data), dict[str, list[Any]]))
    except FAULTS as error:
        raise UsageError(f"{in_quotes(title)} has no table that Djinn wrote: {error}.") from None


def _pages() -> Any:
    """Return the module that draws pages, by name: the client knows no card."""
    return import_module("djinn_jupyter.widgets.studies")


def _drawn(figure: Any) -> bytes:
    into = BytesIO()
    figure.savefig(into, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    return into.getvalue()


def _members(items: Sequence[StudyItem]) -> dict[str, bytes]:
    return {member_of(number, part): data for number, one in enumerate(items) for part, data in one._parts.items()}


# What is said of an item by a check, and by a reproduction.


def _checked(number: int, item: StudyItem) -> StudyRow:
    wrong = None
    if item.has_values:
        try:
            wrong = _differs(item._described, item.result)
        except UsageError as error:
            wrong = str(error)
    if wrong is not None:
        return StudyRow(number=number, title=item.title, outcome="wrong", message=wrong)
    how = f"computed again by {item.model}" if item.model else item.unmade and f"not computed again: {item.unmade}"
    return StudyRow(number=number, title=item.title, outcome="ok", message=f"ok{how and ', '}{how}")


def _differs(told: DescribedItem, result: Any) -> str | None:
    """Return how a result differs from its description in the study; None where it does not."""
    by = getattr(result, "computed_by", None)
    if by != told.by:
        there = "no recipe" if by is None else spelled_model(by)
        return f"The study says another model or machine than the file, which has {there}."
    if isinstance(result, KeptTable) or by is None or by.djinn != __version__:
        return None  # another version may draw another card
    return None if result._bundle()["text/plain"] == told.text else "Its card does not show its values."


def _again(engine: RemoteEngine, here: Provenance, tried: tuple[int, StudyItem]) -> StudyRow:
    """Return the outcome for an item that is computed again, where it can be."""
    number, item = tried
    row: Callable[..., StudyRow] = partial(StudyRow, number=number, title=item.title)
    by = item._described.by
    if by is None:
        return row(outcome="no recipe", message=f"not computed again: {item.unmade}")
    if any(getattr(by, name) != getattr(here, name) for name in DIGESTS):
        return row(outcome="another model", message=f"it needs {spelled_model(by)}; this is {spelled_model(here)}")
    try:
        found = reproducing.reproduce(engine, item.result)
    except interrupts.WorkInterrupted:
        raise KeyboardInterrupt from None  # what was done of this item is no outcome
    except EngineError:
        raise
    except DjinnError as error:
        return row(outcome="refused", message=str(error))
    return row(outcome="same" if found.same else "other", message=" ".join(found.lines()), found=found)
