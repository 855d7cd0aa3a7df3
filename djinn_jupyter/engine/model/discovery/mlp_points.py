"""The places of the residual between the blocks and of the MLP points in one layer."""

from __future__ import annotations

from djinn_jupyter.engine.model.discovery.blocks import BlockContribution, Blocks
from djinn_jupyter.engine.model.discovery.layer_list import same
from djinn_jupyter.engine.model.discovery.layer_record import LayerRecord
from djinn_jupyter.engine.model.discovery.point import (
    FoundPoints,
    ModuleTensor,
    added_as_it_is,
    input_of,
    output_of,
)
from djinn_jupyter.engine.model.discovery.recording import Call, linears
from djinn_jupyter.wire.sites import MLP_POINTS

_WHY_NO_MIDDLE = {
    "parallel": "attention and MLP of this layer are added to the residual at once, so there is nothing between them",
    "one": "this layer is a single block",
    "unknown": "no module of this layer is given a residual to which one module's output is added",
}


def middle_place(record: LayerRecord, blocks: Blocks) -> ModuleTensor | str:
    if blocks.mid is None:
        return _WHY_NO_MIDDLE[blocks.kind]
    call, key = blocks.mid
    if record.count(call.module) != 1:
        return f"{type(call.module).__name__} is called {record.count(call.module)} times in a layer"
    return ModuleTensor(module=call.module, side="input", key=key, in_place=True)


def mlp_places(record: LayerRecord, blocks: Blocks) -> FoundPoints:
    contribution = blocks.first if blocks.kind == "one" else blocks.second
    if contribution is None:
        return dict.fromkeys(MLP_POINTS, "what the MLP of this layer adds is not the output of one module")
    block = contribution.block
    if block is None:
        return {**dict.fromkeys(MLP_POINTS, "no one module makes what the last norm of this layer is given")}
    if record.uses_cache(block):
        return dict.fromkeys(MLP_POINTS, "this layer has no MLP")
    maps = _maps(record, blocks, block)
    found: FoundPoints = {
        "mlp_in": input_of(record, maps[0] if maps and maps[-1] is block else block),
        "mlp_out": output_of(record, block),
        "mlp_out_post": _post(record, contribution),
    }
    found.update(_hidden(record, block, maps))
    return found


def _post(record: LayerRecord, contribution: BlockContribution) -> ModuleTensor | str:
    if contribution.post is not None:
        return output_of(record, contribution.post)
    return added_as_it_is("mlp_out", contribution.scale)


def _maps(record: LayerRecord, blocks: Blocks, block: Call) -> list[Call]:
    """Return the linear maps of the MLP in order. Where the layer itself holds them, `block` is the last one."""
    inner = [call for call in record.calls if call.module in set(linears(block.module)) and call.inside(block)]
    if inner or blocks.mid is None:
        return inner
    start = blocks.mid[0].entered
    maps = set(linears(record.span.module))
    return [call for call in record.calls if call.module in maps and start < call.entered <= block.entered]


def _hidden(record: LayerRecord, block: Call, maps: list[Call]) -> FoundPoints:
    """Return the points of the MLP's hidden layer: the inputs of its activation and of its last linear map."""
    last = next((call for call in maps if _ends(record, call, block)), None)
    if last is None or len(maps) < 2:
        return dict.fromkeys(("mlp_pre", "mlp_post"), "no one linear map makes the MLP's output (a mixture of experts)")
    activations = [call for call in record.calls if maps[0].left < call.entered < last.entered and _activates(call)]
    if len(activations) == 1:
        pre = input_of(record, activations[0])
    else:
        pre = f"the MLP has {len(activations) or 'no'} activation modules"
    return {"mlp_pre": pre, "mlp_post": input_of(record, last)}


def _ends(record: LayerRecord, call: Call, block: Call) -> bool:
    return same(record.shaped(call.first_output), record.shaped(block.first_output))


def _activates(call: Call) -> bool:
    """True for a module without weights that changes its input and keeps its shape: not a dropout in eval."""
    made, given = call.first_output, next(iter(call.inputs.values()), None)
    if made is None or given is None or made.shape != given.shape:
        return False
    bare = next(call.module.parameters(), None) is None and next(call.module.children(), None) is None
    return bare and not same(made.value, given.value)
