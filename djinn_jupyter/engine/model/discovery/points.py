"""The places of one layer's points, from its record."""

from __future__ import annotations

from djinn_jupyter.engine.model.discovery.attention_points import attention_places
from djinn_jupyter.engine.model.discovery.blocks import find_blocks
from djinn_jupyter.engine.model.discovery.layer_record import LayerRecord
from djinn_jupyter.engine.model.discovery.mlp_points import middle_place, mlp_places
from djinn_jupyter.engine.model.discovery.point import FoundPoints


def find_places(record: LayerRecord) -> FoundPoints:
    """Return the points that lie inside a layer. Those at its borders belong to the gates."""
    blocks = find_blocks(record)
    return {
        **attention_places(record, blocks),
        "resid_mid": middle_place(record, blocks),
        **mlp_places(record, blocks),
    }
