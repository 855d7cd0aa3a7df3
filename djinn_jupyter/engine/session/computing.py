"""The way in which a session's passes are computed, chosen before its first: its attention, and its adapter."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_jupyter.engine.model.added.low_rank import HeldAdapter


@dataclass(slots=True, kw_only=True)
class Computing:
    """A way to compute passes. Rows of different ways are no continuation of each other."""

    attention: str | None = None  # None: as the model was loaded
    adapter: HeldAdapter | None = None  # None: the model alone

    @property
    def as_loaded(self) -> bool:
        """True where passes are those of the model as it was loaded: only such are shared with other sessions."""
        return self.attention is None and self.adapter is None

    @property
    def why_alone(self) -> str:
        """The reason for which its passes are not shared, as `passes of eager attention`."""
        named = [] if self.attention is None else [f"of {self.attention} attention"]
        named += [] if self.adapter is None else [f"with the adapter {self.adapter.name}"]
        return f"passes {' and '.join(named)}"

    def attend(self, attention: str | None) -> None:
        """Compute attention so from the first pass on."""
        self.attention = attention

    def adapt(self, adapter: HeldAdapter | None) -> None:
        """Compute with this adapter from the first pass on."""
        self.adapter = adapter

    def compute_like(self, other: Computing) -> None:
        """Compute as another session does."""
        self.attention, self.adapter = other.attention, other.adapter

    def require_computable(self) -> None:
        """Raise UsageError where its adapter is missing."""
        if self.adapter is not None:
            _ = self.adapter.present
