"""nnsight's traces on a Djinn engine: the user's code runs in this process, the passes on the engine.

    from djinn_jupyter.integrations.nnsight import LanguageModel
    model = LanguageModel(dj.load("demo"))
    with model.trace("The capital of France is"):
        hidden = model.model.layers[4].output.save()

Needs nnsight 0.8, `pip install 'djinn-jupyter[nnsight]'`: nnsight itself loads torch.
"""

from djinn_jupyter.errors import MissingDependency

try:
    from djinn_jupyter.integrations.nnsight.model import LanguageModel as LanguageModel
except ImportError as error:
    raise MissingDependency(
        f"nnsight's traces on an engine need nnsight 0.8: pip install 'djinn-jupyter[nnsight]' ({error})."
    ) from error
