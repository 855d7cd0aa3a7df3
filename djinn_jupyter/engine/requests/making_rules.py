"""From a request to a steering rule of this model: everything that can be wrong with it is refused here."""

from __future__ import annotations

import msgspec

from djinn_jupyter.engine.interventions import conditions
from djinn_jupyter.engine.interventions.guard import Guard
from djinn_jupyter.engine.interventions.steering import Rule, check_rule
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.unspaced import note_of
from djinn_jupyter.errors import InvalidCondition, InvalidEdit, UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom
from djinn_jupyter.wire.sites import Site, parse_every_layer, spell_every_layer


def made_rule(runtime: Runtime, request: ask.Steer, number: int) -> Rule:
    """Return the rule that the request asks for. Raises InvalidEdit, InvalidCondition and UnknownSite."""
    every = parse_every_layer(request.site)
    sites, taps = _here(runtime, runtime.site(request.site)) if every is None else _everywhere(runtime, every)
    if isinstance(request.edit, PatchFrom):
        raise InvalidEdit(
            "patch_from takes the value of one stop; a rule holds for many passes. Use set with the array and its "
            "positions, as the client does."
        )
    for site, tap in zip(sites, taps, strict=True):
        check_rule(request.edit, tap, site.selector)
    guard = None if request.when is None else _guard(runtime, request.when, taps, sites[0])
    return Rule(
        number=number,
        named=str(sites[0]) if every is None else spell_every_layer(every),
        sites=sites,
        taps=taps,
        edit=request.edit,
        positions=request.positions,
        onward=request.onward,
        on=request.on,
        guard=guard,
        words=request.words,
        note=None if guard is None else note_of(runtime.tokenizer, sorted(guard.condition.tokens)),
    )


def _here(runtime: Runtime, site: Site) -> tuple[tuple[Site, ...], tuple[Tap, ...]]:
    return (site,), (runtime.resolve(site),)


def _everywhere(runtime: Runtime, first: Site) -> tuple[tuple[Site, ...], tuple[Tap, ...]]:
    """Return the site in each layer that has it, and its taps. Raises UnknownSite where none has it."""
    found: list[tuple[Site, Tap]] = []
    missing: UnknownSite | None = None
    for layer in range(runtime.forward.layers):
        site = msgspec.structs.replace(first, layer=layer)
        try:
            found.append((site, runtime.resolve(site)))
        except UnknownSite as error:
            missing = missing or error
    if not found:
        assert missing is not None
        raise missing
    return tuple(site for site, _ in found), tuple(tap for _, tap in found)


def _guard(runtime: Runtime, text: str, taps: tuple[Tap, ...], site: Site) -> Guard:
    condition = checked_condition(runtime, text, taps[0], site)
    condition.require_truth()
    return Guard(condition=condition, text_of=runtime.tokenizer.text_of, id_of=runtime.tokenizer.token_id)


def checked_condition(runtime: Runtime, text: str, tap: Tap, site: Site) -> conditions.Condition:
    """Return the condition in `text`. Raises InvalidCondition where it cannot be evaluated at this site, whose tap this
    is."""
    condition = conditions.parse(text)
    if condition.needs_lens and (tap.axes != "T D" or tap.width != runtime.forward.anatomy.hidden_size):
        raise InvalidCondition(
            f"top1, p, logit and rank read the residual stream; {tap.site.whole()} has another width. Use resid_post.N."
        )
    if "value" in condition.names and _numbers_at(tap, site) != 1:
        raise InvalidCondition(
            f"value is of one feature, and {site} has more: name one, as in {site.whole()}[0]; norm is of several."
        )
    require_known_tokens(runtime, condition)
    return condition


def _numbers_at(tap: Tap, site: Site) -> int | None:
    """Return how many numbers a position has at a site; None for maps, whose rows grow."""
    if tap.width is None or tap.heads is not None:
        return None
    return tap.width if site.selector is None else len(site.selector)


def require_known_tokens(runtime: Runtime, condition: conditions.Condition) -> None:
    """Raise InvalidCondition for a token that the model does not have."""
    for number in (*map(runtime.tokenizer.token_id, condition.tokens), *condition.token_ids):
        if not 0 <= number < runtime.description.vocab_size:
            raise InvalidCondition(f"There is no token {number}: there are {runtime.description.vocab_size} ids.")
