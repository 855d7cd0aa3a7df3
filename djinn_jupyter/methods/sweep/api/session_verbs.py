"""The verb of a session that reads metrics, as sweeps do, of the logits in which its last run ended."""

from __future__ import annotations

from djinn_jupyter.client.arguments import shown
from djinn_jupyter.client.connection.channel import ask_for
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.request import ReadMetrics


def metrics(session: RemoteSession, /, *texts: str) -> tuple[float, ...]:
    """Return metrics, as those of `dj.sweep`, of the logits in which the last finished pass ended. UsageError
    where none has; IllegalMove where a pass is stopped; InvalidCondition.

    >>> done = session.run("The capital of France is", max_new_tokens=0)
    >>> session.metrics("rank(' Paris')", "rank(' Paris') + 1")
    (1.0, 2.0)
    """
    strange = [text for text in texts if not isinstance(text, str)]
    if strange or not texts:
        given = f"{shown(strange[0])} is none" if strange else "none was given"
        raise UsageError(f"A metric is a text such as \"logit(' Paris')\"; {given}.")
    return ask_for(session.channel, ReadMetrics(session=session.name, metrics=texts)).values
