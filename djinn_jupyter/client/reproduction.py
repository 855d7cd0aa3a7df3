"""A result and the same computed again, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from djinn_jupyter.client.displayed import Displayed
from djinn_jupyter.client.frames import is_told_as_table
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.wire.fingerprints import DIGESTS, differences
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.provenance import Provenance

if TYPE_CHECKING:
    import numpy as np

FOLDER: Final = "/"
SHARED: Final = (
    'Prompts that shared passes may have other last bits where other ones shared them; those of mode="exact" have not.'
)


class Reproducible:
    """A result that `dj.reproduce` computes again, by the function `reproduced_by` (its module and its name), which is
    given the engine, the result and `on_progress`. `ending` is that of its file's name; FOLDER of what is one."""

    ending: ClassVar[str]
    reproduced_by: ClassVar[str]

    @classmethod
    def found_at(cls, path: Path) -> Self:
        """Return the one that is in a file or a folder. UsageError where there is none."""
        found: Self = cls.read(path)  # type: ignore[attr-defined]
        return found

    @property
    def compared_values(self) -> np.ndarray[Any, Any]:
        """All that is compared with the same computed again, as one array."""
        values: np.ndarray[Any, Any] = self.values  # type: ignore[attr-defined]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction(Displayed):
    """A result as it was `before`, and the same `again`; of a collection or a trained module, of which nothing is kept
    when it has been compared, that is None. `same` is True where they have the same bits: all `count` values, and what
    was measured `besides`, such as the metrics of a sweep's unedited lines. `different` counts the values that have
    others, of which the one at `place` (by axis) differs most, by `largest_difference`; NaN on one side alone counts as
    infinite. `origin` has what differs between the models and machines: (name, then, now). `notes` are sentences on
    what else does."""

    before: Any
    again: Any
    same: bool
    count: int
    different: int
    largest_difference: float
    place: dict[str, Any]
    origin: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    besides: str = ""

    def lines(self) -> list[str]:
        """Return what was found, a sentence a line."""
        differs = [f"{name}: {then} then, {now} now" for name, then, now in self.origin]
        return [self._verdict(), *self.notes, *differs]

    def _verdict(self) -> str:
        count = self.count
        if self.same:
            before = self.before
            named = type(before).__name__ if is_told_as_table(before) else repr(before).partition("\n")[0].rstrip(".:")
            return f"The same bits: {count:,} values of {named}."
        if not self.different:
            return f"Other bits: the {count:,} values are the same, and {self.besides} are not."
        at = ", ".join(f"{axis} {place}" for axis, place in self.place.items())
        where = f", most at {at}" if at else ""
        return (
            f"Other bits: {self.different:,} of {count:,} values differ, by up to {self.largest_difference:.3g}{where}."
        )

    def __repr__(self) -> str:
        return "\n".join(self.lines())


@contextmanager
def naming_models(result: str, by: Provenance, here: ModelDescription, *, refused: str = "repeat") -> Iterator[None]:
    """Have an error say which other model a result is of, where the engine serves another. Raises UsageError."""
    try:
        yield
    except DjinnError as error:
        if by.architecture == here.architecture and by.model == here.name:
            raise
        raise UsageError(
            f"The {result} is of {by.model} ({by.architecture}), and this engine serves {here.name} "
            f"({here.architecture}), which cannot {refused} it: {error}"
        ) from error


def compared(
    before: Any,
    again: Any,
    place_of: Callable[[tuple[int, ...]], dict[str, Any]],
    *,
    origins: tuple[Provenance, Provenance],
    notes: Callable[[bool], Sequence[str]],
    differs: str = "",
) -> Reproduction:
    """Compare the values of two results of one shape. `differs` names what else of them has other bits; `notes` are
    told whether all is the same."""
    other, most, at = most_different(before.compared_values, again.compared_values)
    place = {} if at is None else place_of(at)
    same = not differs and not other.any()
    return Reproduction(
        before=before,
        again=again,
        same=same,
        count=other.size,
        different=int(other.sum()),
        largest_difference=most,
        place=place,
        origin=origin_of(*origins),
        notes=tuple(notes(same)),
        besides=differs,
    )


def most_different(
    before: np.ndarray[Any, Any], again: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], float, tuple[int, ...] | None]:
    """Return which values have other bits, the largest difference among these, and the index of that; None where all
    have the same."""
    import numpy as np

    other = bits(before) != bits(again)
    if not other.any():
        return other, 0.0, None
    differences = _differences(before, again)
    at = np.unravel_index(int(np.argmax(np.where(other, differences, -1))), other.shape)
    return other, float(differences[at]), tuple(map(int, at))


def bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers by their bits, which are equal where those of a NaN are."""
    return values.view(f"int{8 * values.itemsize}")


def _differences(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    with np.errstate(invalid="ignore"):
        found = np.abs(one - other).astype(np.float64)
    return np.where(np.isnan(found), np.where(np.isnan(one) & np.isnan(other), 0.0, np.inf), found)


def origin_of(then: Provenance, now: Provenance) -> tuple[tuple[str, str, str], ...]:
    """Return what differs of all that bits follow from; a model's name is no such thing."""
    found = differences(then, now)
    if any(name in DIGESTS for name, _, _ in found):
        found.insert(0, ("model", then.model, now.model))
    return tuple(found)
