"""A backend for TransformerLens 4's `Driver` protocol: a forward is one pass on a Djinn engine, which stops at the hook
points whose functions may change something, and calls them in the process of the notebook.

The functions at a bridge's hook points are called as in its own forward: in the order of the pass, with the present
value. Requests as data (`capture=`, `intervene=`) are served as in other remote drivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformer_lens.model_bridge.driver_protocol import ForwardResult
from transformer_lens.model_bridge.exceptions import StopAtLayerException

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.likeness import open_temporarily
from djinn_jupyter.integrations.lines import Change, HookedLines, Values, place_of, to_tensor, to_values
from djinn_jupyter.integrations.transformer_lens import hooks
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import AttentionName

WITHOUT_EFFECT: Final = frozenset({"output_attentions", "use_cache", "return_dict"})  # on the values of a pass


class DjinnDriver:
    """Runs forwards on an engine. `sites` are those of the served hook points. A `bridge` has blocks, norms, and hook
    points with functions to call; without one `capture` and `intervene` say what is wanted."""

    provides_sequence_logits = True
    _supported_features = frozenset({"intervention_callbacks"})

    def __init__(
        self,
        engine: RemoteEngine,
        adapter: Any,
        tokenizer: Any,
        sites: Mapping[str, hooks.HookSite],
        *,
        attention: AttentionName | None = None,
        bridge: Any = None,
    ) -> None:
        self.engine, self.tokenizer, self.bridge_config = engine, tokenizer, adapter.cfg
        self.architecture: str = adapter.cfg.architecture
        self._attention: AttentionName | None = attention
        self._bridge = bridge
        self._lines = HookedLines(engine.channel, self._opened)
        self.serve(sites, ())

    def serve(self, sites: Mapping[str, hooks.HookSite], refused: Iterable[str]) -> None:
        """Serve the hook points of these sites, and refuse others by name."""
        self.sites = dict(sites)
        self.supported_hook_points = frozenset(self.sites)
        self.non_fireable_hook_points = frozenset(refused)

    def forward(
        self,
        input_ids: Any = None,
        *,
        capture: Sequence[str] = (),
        intervene: Mapping[str, Any] | None = None,
        max_new_tokens: int = 1,
        return_logits: bool = True,
        **others: Any,
    ) -> ForwardResult:
        """Run token ids, [lines, positions] or one line, in one pass. NotImplementedError for features that an engine
        lacks; ValueError for a hook point that is not served."""
        _require_served(max_new_tokens, others)
        looking, functions = self._hooked()
        for name, given in (intervene or {}).items():
            functions.setdefault(name, []).append(hooks.function_of(name, given))
        until = self._until()
        wanted = {name: self._site_of(name) for name in (*capture, *looking)}
        passed = self._lines.run(
            _lines_of(input_ids),
            changes=self._changes(functions),
            read=[site.site for site in wanted.values()] + ([until] if until else []),
            logits=return_logits,
            until=until,
        )
        values = {
            name: self._seen(name, site, passed.values[site.site])
            for name, site in wanted.items()
            if site.site in passed.values
        }
        for name, point in looking.items():
            if name in values:
                self._look(name, point, values[name])
        if until:
            raise StopAtLayerException(to_tensor(passed.values[until]))
        logits = to_tensor(passed.logits) if passed.logits is not None and return_logits else None
        return ForwardResult(logits=logits, captured={name: values[name] for name in capture})

    def close(self) -> None:
        """Close the sessions of this driver; the engine continues."""
        self._lines.close()

    def supports(self, feature: str) -> bool:
        """Return whether it has one of TransformerLens's features."""
        return feature in self._supported_features

    # --- what a pass has to give ------------------------------------------------------------------------------------

    def _hooked(self) -> tuple[dict[str, Any], dict[str, list[hooks.Function]]]:
        """Return the hook points at which a value is read, and the functions of those where it may be changed."""
        points = {} if self._bridge is None else {point.name: point for point in self._bridge.hook_points()}
        if any(point.bwd_hooks for point in points.values()):
            raise NotImplementedError("An engine runs no function of yours backward; use dj.attribute for gradients.")
        hooked = [
            name for name in self.sites if name in points and points[name].fwd_hooks and not hooks.stops(points[name])
        ]
        changing = {name for name in hooked if self.sites[name].changes and not hooks.only_looks(points[name])}
        places = {place_of(self.sites[name].site) for name in changing}
        # A reader at a changed place sees the value after the changes before it and before those after it.
        changing |= {n for n in hooked if self.sites[n].changes and place_of(self.sites[n].site) in places}
        looking = {name: points[name] for name in hooked if name not in changing}
        return looking, {name: [partial(hooks.fired, points[name])] for name in hooked if name in changing}

    def _look(self, name: str, point: Any, value: Tensor) -> None:
        """Call the functions of a hook point that changes nothing. NotImplementedError if they change the value."""
        before = None if self.sites[name].changes else value.clone()
        left = hooks.fired(point, value)
        if before is not None and not torch.equal(left, before):
            raise NotImplementedError(f"{name} is only read on an engine: change {_instead(name)}.")

    def _until(self) -> str | None:
        """Return the site where the pass ends: `stop_at_layer`, which the bridge passes to its blocks, or by a hook."""
        blocks = () if self._bridge is None else self._bridge.blocks
        for layer, block in enumerate(blocks):
            if getattr(block, "_stop_at_layer_idx", None) == layer or hooks.stops(block.hook_in):
                return f"resid_pre.{layer}"
        return None

    def _changes(self, functions: Mapping[str, Sequence[hooks.Function]]) -> dict[str, list[Change]]:
        for name in functions:
            self._site_of(name)
        changes: dict[str, list[Change]] = {}
        for name, site in self.sites.items():
            if name in functions and not site.changes:
                raise NotImplementedError(f"{name} is only read on an engine: change {_instead(name)}.")
            for function in functions.get(name, ()):
                changes.setdefault(site.site, []).append(partial(_changed, site, function))
        return changes

    def _site_of(self, name: str) -> hooks.HookSite:
        if name not in self.sites:
            raise ValueError(f"This engine does not serve the hook point {name!r}; see `supported_hook_points`.")
        return self.sites[name]

    def _seen(self, name: str, site: hooks.HookSite, values: Values) -> Tensor:
        """Return the value at a hook point: the engine's, or what the bridge computes from it."""
        value = _theirs(site, values)
        if site.norm is None and not site.table:
            return value
        if self._bridge is None:
            raise NotImplementedError(f"{name} is computed by a bridge that has weights, and this one has none.")
        if site.norm is None:
            rows: Tensor = self._bridge.W_pos[: value.shape[1]]
            return rows.expand_as(value)
        return hooks.of_norm(self._bridge.get_submodule(site.norm), name.rpartition(".")[2], value)

    def _opened(self, number: int) -> str:
        channel = self.engine.channel
        name = open_temporarily(channel, "TransformerLens")
        if self._attention is not None:
            ask_for(channel, ask.SetAttention(session=name, attention=self._attention))
        return name


def _instead(name: str) -> str:
    """Name the hook point to change in place of a read-only one."""
    norm = name.rpartition(".")[0] + (".ln2" if name.endswith("hook_resid_mid") else "")
    if norm == "pos_embed":
        return "blocks.0.hook_in"
    return f"what the norm returns, {norm}.hook_out, or what was added to the residual before it"


def _require_served(max_new_tokens: int, others: Mapping[str, Any]) -> None:
    if max_new_tokens != 1:
        raise NotImplementedError("A forward runs the line that it is given; `session.run` of Djinn generates.")
    mask = others.get("attention_mask")
    if mask is not None and not bool(np.asarray(mask).all()):
        raise NotImplementedError("Lines run without padding, each in a session: give lines of one length, unmasked.")
    for name, given in others.items():
        if given is not None and given is not False and name not in WITHOUT_EFFECT | {"attention_mask"}:
            raise NotImplementedError(f"A Djinn engine is given token ids, and does not take {name!r}.")


def _lines_of(input_ids: Any) -> list[list[int]]:
    if input_ids is None:
        raise ValueError("A forward needs token ids: `input_ids`, or tokens or a text for the bridge.")
    ids = np.asarray(input_ids.detach().cpu() if hasattr(input_ids, "detach") else input_ids)
    if ids.ndim not in (1, 2) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"Token ids are whole numbers of shape [lines, positions], not {ids.dtype} of {ids.shape}.")
    lines: list[list[int]] = np.atleast_2d(ids).tolist()
    return lines


def _theirs(site: hooks.HookSite, values: Values) -> Tensor:
    """Return values of the engine's, [lines, positions, ...], in TransformerLens's axis order."""
    tensor = to_tensor(values)
    return tensor.transpose(1, 2) if site.heads_first else tensor


def _changed(site: hooks.HookSite, function: hooks.Function, values: Values) -> Values:
    """Call a function of TransformerLens's caller with values of the engine's. Return the changed values."""
    left = function(_theirs(site, values))
    return to_values(left.transpose(1, 2) if site.heads_first else left)
