"""Decide which layers stay on the device and which stream, from sizes alone, and report it before anything is moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from djinn_jupyter.amounts import spell_bytes, spell_option, spell_rate
from djinn_jupyter.errors import ModelDoesNotFit

SLOTS = 2
PAGES_SHARE = 8  # an eighth of the allowed memory is kept for pages


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSizes:
    """A model's sizes in bytes: `total` of its weights and buffers; as laid out in flat buffers, `layers` the weights
    that each decoder layer alone has, and `rest` all that always stays: embeddings, norms, head, shared weights."""

    total: int
    rest: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The layers `streaming` through `slots` slots; the others stay. `link` is the measured copy bandwidth in bytes per
    second, `pages` the least bytes needed for pages."""

    sizes: WeightSizes
    allowed: int
    streaming: tuple[int, ...]
    slots: int
    link: float | None = None
    pages: int = 0

    @property
    def slot_bytes(self) -> int:
        return max(self.sizes.layers[layer] for layer in self.streaming)

    @property
    def bytes_per_pass(self) -> int:
        return sum(self.sizes.layers[layer] for layer in self.streaming)

    @property
    def device_bytes(self) -> int:
        """Device bytes that the weights take: all that stays, and the slots."""
        staying = sum(self.sizes.layers) - self.bytes_per_pass
        return self.sizes.rest + staying + self.slots * self.slot_bytes

    @property
    def page_bytes(self) -> int:
        return self.allowed - self.device_bytes

    @property
    def seconds_per_pass(self) -> float | None:
        """The least seconds that a pass takes, by the link alone."""
        return None if self.link is None else self.bytes_per_pass / self.link

    @property
    def enough(self) -> int:
        """The least allowed bytes with which nothing streams and pages have room."""
        return max(-(-self.sizes.total * PAGES_SHARE // (PAGES_SHARE - 1)), self.sizes.total + self.pages)

    def lines(self) -> Iterator[str]:
        staying = len(self.sizes.layers) - len(self.streaming)
        yield (
            f"{spell_bytes(self.sizes.total)} of weights, {spell_bytes(self.allowed)} allowed: "
            f"{staying} of {len(self.sizes.layers)} layers stay, with embeddings, norms and head; "
            f"{len(self.streaming)} layers stream through {self.slots} slots, "
            f"{spell_bytes(self.bytes_per_pass)} in each pass; {spell_bytes(self.page_bytes)} are left for pages"
        )
        if self.seconds_per_pass is not None and self.link is not None:
            yield (
                f"at the measured {spell_rate(self.link)} a token takes at least {_time(self.seconds_per_pass)}; "
                f"with --device-memory {spell_option(self.enough)} nothing would stream"
            )


def fits(total: int, allowed: int) -> bool:
    """True if all weights may stay. The memory that they leave is for pages, however little."""
    return total < allowed


def place(
    sizes: WeightSizes, allowed: int, *, slots: int = SLOTS, link: float | None = None, pages: int = 0
) -> Placement:
    """Return the placement that streams the fewest layers and leaves an eighth, and at least `pages` bytes, for pages.
    Raises ModelDoesNotFit, with the arithmetic, where there is none.

    The streaming layers are in groups as even as can be, with a layer that stays between two of them and the head,
    sampling and the next embedding behind the last: while these compute, the link gets ahead again.
    """
    room = allowed - max(allowed // PAGES_SHARE, pages)
    count = len(sizes.layers)
    for streaming in range(slots + 1, count + 1):
        staying = _between_groups(streaming, count - streaming)
        chosen = tuple(layer for layer in range(count) if layer not in staying)
        placement = Placement(sizes=sizes, allowed=allowed, streaming=chosen, slots=slots, link=link, pages=pages)
        if placement.device_bytes <= room:
            return placement
    raise ModelDoesNotFit(_too_large(sizes, allowed, slots, pages))


def _between_groups(streaming: int, staying: int) -> set[int]:
    """Return the layers that stay: one behind each group of those that stream, but for the last group."""
    return {(group + 1) * streaming // (staying + 1) + group for group in range(staying)}


def _too_large(sizes: WeightSizes, allowed: int, slots: int, pages: int) -> str:
    largest = max(sizes.layers, default=0)
    least = sizes.rest + slots * largest
    with_share = -(-least * PAGES_SHARE // (PAGES_SHARE - 1))
    needed = max(with_share, least + pages)
    for_pages = "an eighth for pages" if needed == with_share else f"{spell_bytes(pages)} for a few pages"
    return (
        f"The model has {spell_bytes(sizes.total)} of weights. Even if all its {len(sizes.layers)} layers stream, "
        f"{spell_bytes(sizes.rest)} outside the layers have to stay and {slots} slots take "
        f"{spell_bytes(slots * largest)}, with {for_pages} {spell_bytes(needed)} in all, and --device-memory "
        f"allows {spell_bytes(allowed)}; allow more or take a smaller model."
    )


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
