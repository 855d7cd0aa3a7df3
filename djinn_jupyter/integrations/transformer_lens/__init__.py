"""TransformerLens 4 on a Djinn engine: its hooks, caches, patching and analysis, over passes of the engine.

    from djinn_jupyter.integrations.transformer_lens import boot_djinn
    bridge = boot_djinn(dj.load("demo"))
    logits, cache = bridge.run_with_cache("The capital of France is")

Needs TransformerLens 4, `pip install 'djinn-jupyter[transformer-lens]'`: it loads torch itself.
"""

from djinn_jupyter.errors import MissingDependency

try:
    from djinn_jupyter.integrations.transformer_lens.boot import boot_djinn as boot_djinn
    from djinn_jupyter.integrations.transformer_lens.driver import DjinnDriver as DjinnDriver
except ImportError as error:
    raise MissingDependency(
        "TransformerLens on an engine needs TransformerLens 4: pip install 'djinn-jupyter[transformer-lens]' "
        f"({error})."
    ) from error
