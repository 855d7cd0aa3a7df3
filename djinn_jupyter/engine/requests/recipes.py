"""The origin of a result (which model computed it, on what, under which rules), and what makes a look again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import torch
import transformers

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.breakpoints import FedLine, Rule
from djinn_jupyter.engine.session.history import committed_line, why_not_plain
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.machine import processor
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.looks import Circumstances, FedTokens, LookRecipe
from djinn_jupyter.wire.modules import ModuleIdentity
from djinn_jupyter.wire.nouns import AttentionName, ModelDescription
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.running import ApplyEdit, Steer

ANY_SESSION: Final = "measurement"


def origin(identity: ModelIdentity, model: ModelDescription) -> Provenance:
    """Return the provenance of this process's results with this model."""
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
        quantization=identity.quantization,
    )


def circumstances(
    identity: ModelIdentity,
    model: ModelDescription,
    session: Session,
    rules: Iterable[Rule],
    taps: Iterable[Tap] = (),
) -> Circumstances:
    """Return what a measurement in this session, with these rules and taps, follows from besides its request."""
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
    """Return the request that makes a rule again, in any session."""
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


EDITED_HERE: Final = "the value of its stop is edited"


def look_recipe(
    identity: ModelIdentity,
    model: ModelDescription,
    session: Session,
    asked: ask.Inspect | ask.Lens | ask.MeasureEffect,
    tap: Tap,
) -> tuple[LookRecipe | None, str]:
    """Return the recipe of a reading at the present stop; None, with the reason, where its tokens alone do not lead to
    it, or where its edits are unknown."""
    way = way_to_stop(session, with_edits=True)
    if way.unmade:
        return None, way.unmade
    recipe = LookRecipe(
        line=way.line,
        site=str(way.tap.site),
        edits=tuple(
            ApplyEdit(session=ANY_SESSION, edit=one.edit, site=str(one.site), positions=one.positions)
            for one in session.edits
            if one.enabled
        ),
        asked=msgspec.structs.replace(asked, session=ANY_SESSION),
        made=circumstances(identity, model, session, (), [way.tap, tap, *way.taps]),
        passes=way.passes,
    )
    return recipe, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayToStop:
    """The tokens of a stopped session and the passes over them before the present one, by which another session reaches
    the same stop, at `tap` of layer `boundary`. `taps` are those of the rules in force. `unmade` is the reason why they
    do not lead to it; empty where they do."""

    tap: Tap
    boundary: int
    line: tuple[int, ...]
    passes: tuple[FedTokens, ...]
    taps: tuple[Tap, ...]
    unmade: str


def way_to_stop(session: Session, *, with_edits: bool = False) -> WayToStop:
    """Return the way to the present stop of a session. An edited value has none, except with `with_edits`: then the
    caller makes the edits again."""
    stop = session.history.here
    assert stop is not None and stop.frame.tap is not None
    edited = EDITED_HERE if session.edits_in_force and not with_edits else ""
    line = committed_line(stop.tokens, session.pass_log, session.exactness, stop.frame.committed)
    return WayToStop(
        tap=stop.frame.tap,
        boundary=stop.frame.boundary,
        line=(*line.tokens, *stop.frame.tokens),
        passes=wire_passes(line),
        taps=tuple(tap for one in line.passes for rule in one.rules for tap in rule.taps),
        unmade=why_not_plain(stop.frame, session.rules_in_force) or line.unmade or edited,
    )


def wire_passes(line: FedLine) -> tuple[FedTokens, ...]:
    """Return the passes of a sequence in the form of a request."""
    return tuple(
        FedTokens(start=one.start, end=one.end, each=one.each, rules=tuple(map(asked_for, one.rules)))
        for one in line.passes
    )
