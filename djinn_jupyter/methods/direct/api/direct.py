"""`dj.direct`: the parts of a logit at the end of a prompt, by layer, head and neuron, from one pass."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from djinn_jupyter.client.arguments import shown, typed
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.client.waits import waits
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.direct.api.attribution import Attribution, attribute

UNITS: Final = ("head", "neuron")


@waits("The attribution")
@typed
def direct(
    engine: RemoteEngine,
    line: object,
    *,
    metric: str,
    over: str | Sequence[str] = ("layer", "head"),
    adapter: str | None = None,
) -> Attribution:
    """Return direct logit attribution at the last position of a line (a text, or token ids): the parts that the
    embedding, the attention of each layer (over "head" too: each of its heads, and the output map's bias) and each MLP
    (over "neuron" too: each input of its last map, and that map's bias) add to `metric`, which is "logit(A)" or
    "logit(A) - logit(B)". `parts.top(20)` names the largest.

    The final norm is read as a linear map at its actual scale, which is held fixed. The parts and `rest` sum to the
    metric; the attribution prints how large the rest is. A model whose logits or residuals are no such sum is refused
    with the reason. `parts.save("fact.direct.djinn")` keeps them with their recipe, by which `dj.reproduce` tells them
    again. With an `adapter`, by its name, they are its model's. UsageError; UnknownSite; SlabFull.

    >>> parts = dj.direct(engine, "The capital of France is", metric="logit(' Paris') - logit(' Rome')")
    >>> len(parts.columns()["value"]), abs(parts.rest) < 1e-4
    (51, True)
    """
    units, tokens = _units(over), _tokens_of(metric)
    with temporary_session(engine.channel, "attribution", adapter) as name:
        session = RemoteSession(engine.channel, name)
        session.breakpoint(f"resid_post.{engine.description.layers - 1}")
        session.run(line, max_new_tokens=1)
        return attribute(session, *tokens, heads="head" in units, neurons="neuron" in units)


def _units(over: str | Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (over.split(",") if isinstance(over, str) else over))
    if names[:1] != ("layer",) or len(set(names)) < len(names) or not set(names[1:]) <= set(UNITS):
        raise UsageError(
            f"Direct attribution goes over layer, and over head, neuron or both; not over {', '.join(names)}."
        )
    return names[1:]


def _tokens_of(metric: str) -> tuple[str | int, ...]:
    """Return the tokens of logit(A), or of logit(A) - logit(B). Raises UsageError for another metric."""
    try:
        found = ast.parse(metric.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _no_sum(metric) from None
    is_difference = isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub)
    parts = [found.left, found.right] if is_difference else [found]  # type: ignore[attr-defined]
    return tuple(_token_of(part, metric) for part in parts)


def _token_of(part: ast.expr, metric: str) -> str | int:
    match part:
        case ast.Call(func=ast.Name(id="logit"), args=[ast.Constant(value=token)], keywords=[]):
            if isinstance(token, str) or type(token) is int:
                return token
    raise _no_sum(metric)


def _no_sum(metric: str) -> UsageError:
    return UsageError(
        "Parts are told of logit(' Mary'), or of logit(' Mary') - logit(' John'): others are no sum of them, as "
        f"{shown(metric)}."
    )
