"""The engine in a few lines: its model, its self-tests, its memory and sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from djinn_jupyter.api.names import cut
from djinn_jupyter.widgets.html import card, facts, mono
from djinn_jupyter.widgets.memory import CAUSES, expected_line, streaming_rows, tier_line, transfer_line, weights_line
from djinn_jupyter.widgets.spelling import amount, columns, plural
from djinn_jupyter.widgets.tables import armed
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire import modules, nouns
from djinn_jupyter.wire.texts import faults_line, in_quotes, label

NAMED: Final = 8  # features in a line

NO_SIDEBAR: Final = (
    "No sidebar here. %djinn_sessions, %djinn_breaks, %djinn_tree and %djinn_vram show what it shows; for each of its "
    "actions there is a magic (docs/front_ends.md)."
)


def loaded_view(
    model: nouns.ModelDescription,
    session: nouns.SessionDescription,
    weights: nouns.WeightsStatistics | None = None,
    *,
    names_device: bool = True,
    no_sidebar: bool = False,
) -> View:
    """Show the output of `%djinn_load`: the model, its streamed weights if any, and the session's existing state.
    Without the device's name it is the same on every device. `no_sidebar` adds the magics that replace the sidebar."""
    held = armed(session)
    where = f"{model.dtype} on {model.device}" if names_device else model.dtype
    size = f"{plural(model.layers, 'layer')}, {model.hidden_size:,} wide, {_context(model)}"
    checks = _checks(model)
    streams = _streams(weights)
    plain = "\n".join(
        [
            f"{model.name}: {model.architecture}, {size}, {where}",
            *(f"{name}: {line}" for name, line in streams),
            *model.notes,
            checks,
            f"session {label(session.name)}: {held}",
            *([NO_SIDEBAR] if no_sidebar else []),
        ]
    )
    rows = [
        ("model", f"{model.architecture}, {size}"),
        ("weights", f"{model.parameters:,} parameters, {where}, {model.attention} attention"),
        *streams,
        *(("note", note) for note in model.notes),
        ("self-test", checks),
        ("session", f"{label(session.name)}: {held}"),
        *([("sidebar", NO_SIDEBAR)] if no_sidebar else []),
    ]
    return View(plain=plain, html=card(facts(rows), title=mono(model.name), beside="loaded", dot="done"))


def _streams(weights: nouns.WeightsStatistics | None) -> list[tuple[str, str]]:
    """Return rows on the streamed part of the weights and its expected cost; none unless weights stream."""
    if weights is None or weights.residency != "streamed":
        return []
    expected = expected_line(weights)
    return [("streamed", weights_line(weights)), *([("expected", expected)] if expected is not None else [])]


def status_view(
    model: nouns.ModelDescription,
    reading: nouns.EngineStatistics,
    session: nouns.SessionDescription | None,
    added: Sequence[modules.AddedModuleDescription] = (),
    methods: Sequence[str] = (),
) -> View:
    """Show the engine's statistics, the modules that the asker has added, and lines on methods. Memory is as measured;
    figures that were not measured are marked so."""
    slabs = reading.slabs
    pages = sum(s.pages for s in slabs)
    free = sum(s.pages_free for s in slabs)
    last = session.last_transfer if session is not None else None
    moved = f"{transfer_line(last)}, {CAUSES[last.cause]}" if last is not None else None
    rows = [
        ("model", f"{model.name}, {model.architecture}, {model.dtype} on {model.device}, {model.attention} attention"),
        ("size", f"{plural(model.layers, 'layer')}, {plural(model.parameters, 'parameter')}, {_context(model)}"),
        *(("note", note) for note in model.notes),
        ("self-test", _checks(model)),
        ("fed", f"in {model.feeding}" if model.feeding == "chunks" else model.feeding),
        ("session", f"{label(session.name)}: {session.doing}, {armed(session)}" if session else "none in use here"),
        ("sessions", f"{reading.sessions}, of which {reading.sessions_running} running"),
        *(("added", added_line(module)) for module in added),
        *(("method", line) for line in methods),
        ("work", f"{plural(reading.passes, 'pass', 'passes')}, {plural(reading.layers_run, 'layer')} run, "
                 f"{plural(reading.tokens_sampled, 'token')} sampled"),
        ("weights", amount(reading.weight_bytes) if reading.weights is None else weights_line(reading.weights)),
        *(streaming_rows(reading.weights) if reading.weights is not None else ()),
        ("pages", f"{pages - free:,} of {pages:,} in use, {sum(s.pages_shared for s in slabs):,} shared, "
                  f"{amount(sum(s.bytes_allocated for s in slabs))}"),
        *((("budget", _budget(reading.budget)),) if reading.budget else ()),
        *((tier.tier, tier_line(tier)) for tier in reading.tiers),
        *((("last move", moved),) if moved else ()),
        *((("journal", reading.journal_trouble),) if reading.journal_trouble else ()),
        *((("log", reading.log_trouble),) if reading.log_trouble else ()),
        *((("came back", _came_back(reading)),) if reading.recovered_exact or reading.recovered_recomputed else ()),
        *((("faults", faults_line(reading.faults, reading.last_fault)),) if reading.faults else ()),
        ("process", amount(reading.process_bytes) + _process(reading.process)),
        ("device", _device(reading)),
    ]  # fmt: skip
    html = card(facts(rows), title=mono(model.name), beside="engine", dot="done")
    return View(plain=columns(rows), html=html)


def _budget(budget: nouns.BudgetStatistics) -> str:
    """Spell the bytes that sessions hold, their limit, and the kinds of holdings."""
    held = ", ".join(f"{amount(one.bytes_held)} in {one.kind}" for one in budget.holdings if one.bytes_held)
    over = f"; {amount(budget.bytes_overdrawn)} have to leave" if budget.bytes_overdrawn else ""
    return f"{amount(budget.bytes_taken)} of {amount(budget.bytes_limit)}{f': {held}' if held else ''}{over}"


def _process(process: nouns.ProcessMemory | None) -> str:
    """Spell the parts of the process's memory, as far as the system reports them."""
    if process is None or process.anonymous_bytes is None:
        return ""
    parts = [f"{amount(process.mapped_bytes)} parts of files", f"{amount(process.accounted_bytes)} accounted for"]
    if process.runtime_bytes is not None:
        parts.append(f"{amount(process.runtime_bytes)} Python and its libraries")
        parts.append(f"{amount(process.beyond_bytes)} beyond")
    return f": {', '.join(parts)}"


def _context(model: nouns.ModelDescription) -> str:
    return "no fixed context" if model.context_length is None else f"{model.context_length:,} positions"


def _checks(model: nouns.ModelDescription) -> str:
    failed = [check.name for check in model.checks if not check.passed]
    if failed:
        return f"{plural(len(failed), 'check')} failed: {', '.join(failed)}"
    return f"{plural(len(model.checks), 'check')} passed"


def _came_back(reading: nouns.EngineStatistics) -> str:
    return f"{reading.recovered_exact:,} as they were, {reading.recovered_recomputed:,} to be computed again"


def _device(reading: nouns.EngineStatistics) -> str:
    if reading.device_bytes_total is None:
        return "not measured (no accelerator)"
    return f"{amount(reading.device_bytes_in_use)} of {amount(reading.device_bytes_total)} in use, all programs" + (
        "" if reading.other_bytes is None else f", {amount(reading.other_bytes)} by others"
    )


def added_line(module: modules.AddedModuleDescription) -> str:
    """Spell a module, as `sae.4: sae (relu) of resid_post.4, 32 to 48 features, 12 KiB, from folder`."""
    kind = "cross-layer transcoder" if module.kind == "cross_layer_transcoder" else module.kind.replace("_", " ")
    how = f"{kind} ({module.activation})" if module.kind in ("sae", *modules.TRANSCODERS) else kind
    size = f"{module.inputs:,} to {plural(module.features, 'feature')}, {amount(module.bytes_held)}"
    ends = "" if module.error_term else "; edits leave out the error term"
    said = [said for said in (module.note, module.missing) if said is not None]
    return (
        f"{module.site}: {how} of {module.at}, {size}, from {module.folder}{ends}{''.join(f'; {one}' for one in said)}"
    )


def names_line(site: str, names: Mapping[int, str]) -> str:
    """Spell the names of a module's features, as `sae.4: 2 named features: 17 'capitals', 436 'soup'`."""
    some = ", ".join(f"{feature} {in_quotes(cut(name))}" for feature, name in islice(names.items(), NAMED))
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{site}: {plural(len(names), 'named feature')}{some and f': {some}'}{more}"


def adapter_line(adapter: modules.AdapterDescription) -> str:
    """Spell an adapter, as `sql: 14 modules (q_proj, v_proj), 56 KiB, from folder; in tuned`."""
    size = f"{plural(adapter.modules, 'module')} ({', '.join(adapter.targets)}), {amount(adapter.bytes_held)}"
    users = f"; in {', '.join(map(label, adapter.sessions))}" if adapter.sessions else ""
    note = "" if adapter.note is None else f"; {adapter.note}"
    if adapter.missing is not None:
        return f"{adapter.name}: {adapter.missing}"
    return f"{adapter.name}: {size}, from {adapter.folder}{users}{note}"
