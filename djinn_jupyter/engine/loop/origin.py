"""The origin of a result: which model computed it, on what, and under which rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import torch
import transformers

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.steering import Rule
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.machine import processor
from djinn_jupyter.wire.looks import Circumstances
from djinn_jupyter.wire.modules import ModuleIdentity
from djinn_jupyter.wire.nouns import AttentionName, ModelDescription
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.running import Steer

ANY_SESSION: Final = "measurement"


def origin(identity: ModelIdentity, model: ModelDescription) -> Provenance:
    """Return the provenance of what this process computes with this model."""
    return Provenance(
        model=model.name,
        revision=model.revision,
        architecture=identity.architecture,
        configuration=identity.configuration,
        weights=identity.weights,
        dtype=identity.dtype,
        attention=identity.attention,
        device=identity.device,
        processor=_processor(torch.device(model.device)),
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        transformers=transformers.__version__,
        djinn=__version__,
        tensor_parallel=identity.tensor_parallel,
    )


def circumstances(
    identity: ModelIdentity,
    model: ModelDescription,
    session: Session,
    rules: Iterable[Rule],
    taps: Iterable[Tap] = (),
) -> Circumstances:
    """Return what a measurement in this session, under these rules and at these taps, follows from besides its
    request."""
    held = tuple(rules)
    return Circumstances(
        rules=tuple(map(asked_for, held)),
        modules=modules_at([*taps, *(tap for rule in held for tap in rule.taps)]),
        attention=msgspec.convert(session.attention, AttentionName | None),
        by=origin(identity, model),
        adapter=None if session.adapter is None else session.adapter.identity,
    )


def modules_at(taps: Iterable[Tap]) -> tuple[ModuleIdentity, ...]:
    """Return the added modules whose values are at these taps, each once."""
    found = {(one.name, one.at): one for one in (tap.added for tap in taps) if one is not None}
    return tuple(found[place] for place in sorted(found))


def asked_for(rule: Rule) -> Steer:
    """Return the request that makes a rule again, in whichever session."""
    return Steer(
        session=ANY_SESSION,
        site=rule.named,
        edit=rule.edit,
        positions=rule.positions,
        onward=rule.onward,
        on=rule.on,
        when=rule.when,
        words=rule.words,
    )


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}"
