"""An added module in a line, and an added adapter."""

from __future__ import annotations

from djinn_jupyter.widgets.spelling import amount, plural
from djinn_jupyter.wire.modules import TRANSCODERS, AdapterDescription, AddedModuleDescription
from djinn_jupyter.wire.texts import label


def added_line(module: AddedModuleDescription) -> str:
    """Return what a module is, as `sae.4: sae (relu) of resid_post.4, 32 to 48 features, 12 KiB, from folder`."""
    kind = "cross-layer transcoder" if module.kind == "cross_layer_transcoder" else module.kind.replace("_", " ")
    how = f"{kind} ({module.activation})" if module.kind in ("sae", *TRANSCODERS) else kind
    size = f"{module.inputs:,} to {plural(module.features, 'feature')}, {amount(module.bytes_held)}"
    ends = "" if module.error_term else "; edits leave out the error term"
    said = [said for said in (module.note, module.missing) if said is not None]
    return (
        f"{module.site}: {how} of {module.at}, {size}, from {module.folder}{ends}{''.join(f'; {one}' for one in said)}"
    )


def adapter_line(adapter: AdapterDescription) -> str:
    """Return what an adapter is, as `sql: 14 modules (q_proj, v_proj), 56 KiB, from folder; in tuned`."""
    size = f"{plural(adapter.modules, 'module')} ({', '.join(adapter.targets)}), {amount(adapter.bytes_held)}"
    users = f"; in {', '.join(map(label, adapter.sessions))}" if adapter.sessions else ""
    note = "" if adapter.note is None else f"; {adapter.note}"
    if adapter.missing is not None:
        return f"{adapter.name}: {adapter.missing}"
    return f"{adapter.name}: {size}, from {adapter.folder}{users}{note}"
