"""An added module in a line."""

from __future__ import annotations

from djinn_jupyter.widgets.spelling import amount, plural
from djinn_jupyter.wire.module_form import AddedModuleDescription


def added_line(module: AddedModuleDescription) -> str:
    """Return what a module is, as `sae.4: sae (relu) of resid_post.4, 32 to 48 features, 12 KiB, from folder`."""
    kind = module.kind.replace("_", " ")
    how = f"{kind} ({module.activation})" if module.kind in ("sae", "transcoder") else kind
    size = f"{module.inputs:,} to {plural(module.features, 'feature')}, {amount(module.bytes_held)}"
    ends = "" if module.error_term else "; edits leave out the error term"
    said = [said for said in (module.note, module.missing) if said is not None]
    return (
        f"{module.site}: {how} of {module.at}, {size}, from {module.folder}{ends}{''.join(f'; {one}' for one in said)}"
    )
