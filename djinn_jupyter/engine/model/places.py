"""Where the points of one layer are, from its record."""

from __future__ import annotations

from djinn_jupyter.engine.model.attention_places import attention_places
from djinn_jupyter.engine.model.blocks import find_blocks
from djinn_jupyter.engine.model.layer_record import LayerRecord
from djinn_jupyter.engine.model.mlp_places import middle_place, mlp_places
from djinn_jupyter.engine.model.place import Found


def find_places(record: LayerRecord) -> Found:
    """The points that lie inside a layer. Those at its borders belong to the gates."""
    blocks = find_blocks(record)
    return {
        **attention_places(record, blocks),
        "resid_mid": middle_place(record, blocks),
        **mlp_places(record, blocks),
    }
