from typing import Any

import djinn_jupyter.methods.datasets.api.collecting
import djinn_jupyter.methods.datasets.api.scoring
import djinn_jupyter.methods.datasets.api.session_verbs
import djinn_jupyter.methods.direct.api
import djinn_jupyter.methods.features.api.page
import djinn_jupyter.methods.heads.api
import djinn_jupyter.methods.text.api
import djinn_jupyter.methods.why.api

class Verb:
    module: str
    def __init__(self, module: str) -> None: ...
    def __get__(self, one: object, kind: type) -> Any: ...

class EngineVerbs:
    collect = djinn_jupyter.methods.datasets.api.collecting.collect
    loss = djinn_jupyter.methods.datasets.api.scoring.loss
    feature = djinn_jupyter.methods.features.api.page.feature
    head_scores = djinn_jupyter.methods.heads.api.head_scores
    head = djinn_jupyter.methods.heads.api.head

class SessionVerbs:
    attribute = djinn_jupyter.methods.direct.api.attribute
    loss = djinn_jupyter.methods.datasets.api.session_verbs.loss
    all_logits = djinn_jupyter.methods.datasets.api.session_verbs.all_logits
    patterns = djinn_jupyter.methods.heads.api.patterns
    why = djinn_jupyter.methods.why.api.why
    text = djinn_jupyter.methods.text.api.text
    text_lens = djinn_jupyter.methods.text.api.text_lens
