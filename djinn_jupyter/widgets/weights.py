"""The residency of a model's weights in words and tables: on the device, asleep, or streamed through the
ring."""

from __future__ import annotations

from djinn_jupyter.amounts import spell_option, spell_rate
from djinn_jupyter.widgets.spelling import amount, duration, percent, plural
from djinn_jupyter.wire.nouns import RingSlot, WeightsStatistics
from djinn_jupyter.wire.replies import WeightsMoved


def weights_line(weights: WeightsStatistics) -> str:
    """Spell the residency of the weights in one line; for streamed weights with the resident bytes and the bytes moved
    per pass."""
    if weights.residency == "asleep":
        return f"{amount(weights.bytes_total)}, asleep: the next request that needs them brings them back"
    if weights.residency == "resident":
        return f"{amount(weights.bytes_on_device)} on the device"
    return (
        f"{amount(weights.bytes_on_device)} of {amount(weights.bytes_total)} on the device; "
        f"{plural(weights.layers_streamed, 'layer')} stream{'s' if weights.layers_streamed == 1 else ''}, "
        f"{amount(weights.bytes_streamed_per_pass)} a pass through {plural(weights.ring_slots, 'slot')}"
    )


def expected_line(weights: WeightsStatistics) -> str | None:
    """Spell the least time per token, and the device memory at which nothing would stream; None if not measured."""
    if weights.link_bytes_per_second is None or weights.bytes_enough is None:
        return None
    least = weights.bytes_streamed_per_pass / weights.link_bytes_per_second
    return (
        f"at least {duration(least)} a token at the measured {spell_rate(weights.link_bytes_per_second)}; "
        f"with --device-memory {spell_option(weights.bytes_enough)} nothing would stream"
    )


def streaming_rows(weights: WeightsStatistics) -> list[tuple[str, str]]:
    """Return rows on streamed weights: the ring, its copies, the passes' waiting time, and the used share of the
    bytes."""
    if weights.residency != "streamed":
        return []
    rows = [("ring", "; ".join(slot_words(number, slot) for number, slot in enumerate(weights.ring)))]
    rows.append(("layer copies", f"{weights.layer_copies:,} at {_speed(weights)}{_waited(weights)}"))
    if weights.used_fraction is not None:
        rows.append(("experts", f"{percent(weights.used_fraction)} of the moved bytes were used, the rest are experts "
                                "that no token took"))  # fmt: skip
    if weights.bytes_held_on_host:
        rows.append(("host copy", f"{amount(weights.bytes_held_on_host)} of what streams are in host memory, not "
                                  "mapped from a file"))  # fmt: skip
    return rows


def slot_words(number: int, slot: RingSlot) -> str:
    """Spell a slot: `slot 1: layer 7, filling 41`."""
    if slot.layer is None:
        return f"slot {number}: empty"
    return f"slot {number}: layer {slot.layer}, filling {slot.generation}{', computing' if slot.computing else ''}"


def ring_rows(ring: tuple[RingSlot, ...]) -> list[list[object]]:
    """Return one row per slot: number, layer, fillings, size."""
    return [
        [number, "empty" if slot.layer is None else f"layer {slot.layer}", f"{slot.generation:,}",
         amount(slot.bytes_allocated)]
        for number, slot in enumerate(ring)
    ]  # fmt: skip


RING_HEAD = ("slot of the ring", "holds", "fillings", "size")


def sleep_line(name: str, moved: WeightsMoved) -> str:
    """Return the output of `%djinn_sleep`, for weights put to sleep or brought back."""
    away = moved.weights.residency == "asleep"
    if moved.seconds == 0:
        return f"the weights of {name} {'are asleep already' if away else 'are on the device already'}"
    if away and moved.weights.ring_slots:
        return (
            f"the weights of {name} left the device in {duration(moved.seconds)}; nothing was copied, the host has all"
        )
    size = amount(moved.weights.bytes_total)
    place = "left the device" if away else "are back on the device"
    return f"the weights of {name} {place}: {size} in {duration(moved.seconds)}"


def _speed(weights: WeightsStatistics) -> str:
    speed = weights.copy_gigabytes_per_second
    return "a speed not measured" if speed is None else f"{spell_rate(speed * 1e9)}"


def _waited(weights: WeightsStatistics) -> str:
    if not weights.pass_seconds:
        return ""
    share = percent(min(1.0, weights.waited_seconds / weights.pass_seconds))
    return f"; passes waited for them {share} of their time ({duration(weights.waited_seconds)})"
