from typing import Any

from djinn_jupyter.methods.datasets.api import collecting, scoring
from djinn_jupyter.methods.datasets.api import session_verbs as of_datasets
from djinn_jupyter.methods.direct import api as direct
from djinn_jupyter.methods.heads import api as heads

class Verb:
    module: str
    def __init__(self, module: str) -> None: ...
    def __get__(self, one: object, kind: type) -> Any: ...

class EngineVerbs:
    collect = collecting.collect
    loss = scoring.loss
    head_scores = heads.head_scores

class SessionVerbs:
    attribute = direct.attribute
    loss = of_datasets.loss
    all_logits = of_datasets.all_logits
    patterns = heads.patterns
