"""What makes each list and each text of a reply grow. One that is not here has no bound yet: give it one, then its
place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import inspect

from djinn_jupyter.wire import kinds
from djinn_jupyter.wire.base import ReplyBase

BY: Final[dict[str, str]] = {
    "model": """
        ModelDescription.eos_token_ids ModelDescription.points ModelDescription.cache_groups
        ModelDescription.generation_defaults ModelDescription.checks ModelDescription.notes
        PointDescription.layers CacheGroup.layers Modules.modules AdapterDescription.targets GraphMade.layers
        HeadsRead.layers Attributed.neurons Attributed.contributions GraphRecipe.modules WeightsStatistics.ring
        ScoreSide.parts
        EdgesAttributed.writers EdgesAttributed.readers CircuitsRun.writers CircuitsRun.readers LargestDifference.index
        Paused.shape Edited.shape Pooled.shape FiguresRead.shape Compared.shapes Finished.ignored_defaults
        EngineStatistics.slabs EngineStatistics.tiers BudgetStatistics.holdings Circumstances.modules Recipe.modules
        Checked.alike PooledHeads.heads Pooled.cells Pooled.alone Pooled.last PooledHeads.cells Strongest.places
        Strongest.values WeightRead.values Logits.logits Edited.positions GraphMade.positions GraphMade.values
        GraphMade.sites GraphMade.outputs GraphMade.weights GraphMade.edges GraphMade.reached GraphMade.bias
        GraphMade.summed NeuronParts.values EdgesAttributed.scores""",
    "line": """
        Tokenized.tokens Tokenized.texts Paused.positions Paused.tokens Paused.texts Paused.log_probabilities
        Paused.norms Paused.values Finished.tokens Finished.texts Finished.prompt_tokens Finished.prompt_texts
        Finished.log_probabilities RuleDescription.positions LookRecipe.line AttributionRecipe.line Snapshot.positions
        Pooled.positions FiguresRead.positions FiguresRead.each Apart.positions Apart.distances Swept.texts
        GraphMade.texts HeadsRead.texts AttributionRecipe.tokens AttributionRecipe.passes LookRecipe.passes
        WatchedLine.tokens WatchedLine.passes Reached.positions Reached.drawn Attributed.tokens TextMeasured.*
        ScoreExplained.tokens ScoreExplained.texts HeadExample.weights""",
    "request": """
        Inspect.positions Lens.positions Lens.tokens MeasureEffect.tokens ApplyEdit.positions Steer.positions
        PatchFrom.positions Sweep.* AttributeEdges.* RunCircuits.* MakeGraph.* Noise.positions Continued.*
        Estimate.corrections EffectReading.chosen LensRow.chosen LensRead.notes Attributed.notes Swept.over
        ScoreExplained.notes
        Swept.measured Swept.notes Swept.windows Swept.receivers Swept.rechecked Confirmed.* Measured.values
        Swept.places EdgesAttributed.notes GraphMade.notes CircuitsRun.notes CircuitsRun.values MetricsRead.values
        Collected.notes Collected.rechecked Scored.tokens Scored.notes HeadsRead.lines HeadsRead.scores HeadRead.*
        OVCircuit.pairs OVCircuit.notes PassRead.sites InPieces.sizes FeatureRead.* FeaturesEncoded.*
        PieceRead.content Add.vector Set.value ProjectOut.direction NormMatch.vector Orthogonal.direction
        ProjectionCap.direction Direction.vector EffectReading.before EffectReading.after EffectReading.shifts""",
    "ANSWERED_TOKENS": "LensRead.rows LensRow.top TextLensRead.*",
    "ANSWERED_VALUES": """
        PassRead.values PassRead.logits WatchRead.values WatchRead.positions WatchRead.runs WatchRecipe.lines
        Scored.values HeadsRead.patterns Snapshot.value""",
    "MOST_HANDED_OVER": "Collected.content",
    "TOP": "Finished.top",
    "SIZES_TOLD": "RuleDescription.relative_sizes",
    "MOST_STANDING": """
        SessionDescription.breakpoints SessionDescription.rules SessionDescription.watches Paused.also Paused.edits
        Finished.rules Effect.edits Influences.rules Influences.edits Circumstances.rules LookRecipe.edits
        Influences.overrides Override.changes""",
    "CHANGES_TOLD": "Influences.earlier EarlierPasses.changes",
    "MOST_RULES": "FedTokens.rules",
    "MOST_PERSONS": "SessionDescription.shares",
    "MOST_STOPS": "History.stops",
    "STOPS_TOLD": "Branch.stops",
    "a page": "Sessions.sessions",
    "MOST_SESSIONS": """
        Welcome.attached AdapterDescription.sessions ShuttingDown.sessions_lost ShuttingDown.sessions_kept
        Tree.branches""",
    "persons": "People.people EngineStatistics.people",
    "MOST modules of a person": "AddedModules.modules Adapters.adapters",
    "KEPT copies": "Copies.copies",
    "MOST_LISTED": "Checkpoints.checkpoints",
    "options": "ProvenanceRead.stores",
    "installed methods": "Welcome.methods Welcome.left_out",
}


# What makes the longest text of a field; those whose type says how long they are need no place.
TEXTS: Final[dict[str, str]] = {
    "words of ours": """
        Failed.code Welcome.version Welcome.engine Welcome.anew PointDescription.shape PointDescription.absent
        CacheGroup.kind CheckResult.name CheckResult.detail ModelDescription.notes ModelDescription.attention
        ModelDescription.dtype ModelDescription.device AddedModuleDescription.writes AddedModuleDescription.activation
        AddedModuleDescription.why_not_edited AddedModuleDescription.missing AddedModuleDescription.note
        AdapterDescription.missing AdapterDescription.note EngineStatistics.log_trouble Holding.kind
        BreakpointDescription.note RuleDescription.note SessionDescription.attention Paused.axes Paused.dtype
        Finished.detail Finished.ignored_defaults Finished.note Effect.unmade Snapshot.axes Snapshot.dtype
        Inspected.unmade Pooled.axes Pooled.dtype FiguresRead.axes FiguresRead.dtype Compared.dtypes LensRead.notes
        LensRead.unmade Contribution.point Attributed.notes Attributed.unmade
        ScoreExplained.notes HeadRead.notes HeadRead.unread Swept.notes EdgesAttributed.notes
        GraphMade.notes CircuitsRun.notes Collected.notes Checked.alike Scored.notes WatchRead.axes WatchRead.unmade
        FeatureRead.unwritten FeatureRead.notes FeatureRead.writes
        PointDescription.point ReplyBase.not_kept EngineStatistics.journal_trouble""",
    "model": """
        ModelDescription.name ModelDescription.revision ModelDescription.architecture PointDescription.module
        ModelDescription.generation_defaults ModuleDescription.path ModuleDescription.kind AdapterDescription.targets
        WeightRead.name Paused.site Paused.also Finished.texts Paused.texts EdgesAttributed.writers
        EdgesAttributed.readers CircuitsRun.writers CircuitsRun.readers GraphMade.outputs GraphMade.sites
        GraphMade.texts HeadsRead.texts Swept.texts Tokenized.texts TopToken.text TokenShift.text LensRow.text
        WrittenToken.text Finished.prompt_texts TextMeasured.texts TextLensRead.texts TextLensRead.spelled
        TextLensRead.sites ScorePart.point ScoreExplained.texts HeadRead.spelled OVCircuit.notes""",
    "line": """
        Tokenized.text Paused.prompt_text Paused.new_text Finished.text Finished.prompt_text Branch.text""",
    "request": """
        AddedModuleDescription.name AddedModuleDescription.site AddedModuleDescription.at AddedModuleDescription.folder
        AddedModuleDescription.digest AdapterDescription.name AdapterDescription.folder AdapterDescription.digest
        AdapterDescription.sessions SessionDescription.owner SessionDescription.stopped_at SessionDescription.adapter
        BreakpointDescription.site BreakpointDescription.when RuleDescription.site RuleDescription.what
        RuleDescription.when RuleDescription.trouble WatchDescription.site WatchDescription.direction SharedWith.person
        PersonMemory.person ProvenanceRead.person ShuttingDown.sessions_lost ShuttingDown.sessions_kept Paused.edits
        RuleAtStop.site RuleAtStop.what RuleAtStop.trouble Override.site Change.what EarlierPasses.changes
        EditAtStop.site EditAtStop.what Influences.adapter Edited.site Edited.edit Effect.site Effect.edits
        LookRecipe.site Snapshot.site Pooled.site FiguresRead.site Compared.site PassRead.sites LensRead.site Swept.site
        FeatureRead.site FeatureRead.at
        Swept.places Swept.edit Swept.receivers Swept.recipe Measured.metric EdgesAttributed.metric CircuitsRun.metric
        GraphRecipe.modules Collected.path Evaluated.value Evaluated.site StopDescription.site CheckpointSaved.path""",
    "LONGEST_MESSAGE": """
        Failed.message EngineStatistics.last_fault Opened.note""",
    "HEAD_BYTES": """
        CheckpointDescription.model CheckpointDescription.dtype CheckpointDescription.stopped_at
        CheckpointDescription.version""",
    "options": "ProvenanceRead.stores",
    "MOST_SAID of an installed method": "Welcome.left_out",
}


def lists() -> tuple[str, ...]:
    """Return the lists, maps and arrays of all replies, as `Struct.field`."""
    return tuple(dict.fromkeys(_of(inspect.type_info(kinds.any_of("replies")), set(), _grows)))


def texts() -> tuple[str, ...]:
    """Return the texts and bytes of all replies whose type does not say how long they may be, as `Struct.field`."""
    return tuple(dict.fromkeys(_of(inspect.type_info(kinds.any_of("replies")), set(), _is_text)))


def what_bounds(table: dict[str, str] = BY) -> dict[str, str]:
    return {name: by for by, names in table.items() for name in names.split()}


def _of(shape: Any, seen: set[type], grows: Callable[[Any], bool]) -> Iterator[str]:
    for part in _within(shape):
        if isinstance(part, inspect.StructType) and part.cls not in seen:
            seen.add(part.cls)
            for field in part.fields:
                if any(map(grows, _within(field.type))):
                    yield f"{_owner(part.cls, field.name).__name__}.{field.name}"
                yield from _of(field.type, seen, grows)


def _owner(cls: type, field: str) -> type:
    """Return the class that declares a field, where all replies have it."""
    return ReplyBase if field in ReplyBase.__struct_fields__ else cls


def _is_text(shape: Any) -> bool:
    return isinstance(shape, inspect.StrType | inspect.BytesType) and shape.max_length is None


def _grows(shape: Any) -> bool:
    return isinstance(shape, inspect.VarTupleType | inspect.ListType | inspect.DictType | inspect.CustomType)


def _within(shape: Any) -> Iterator[Any]:
    """Yield a type and all types within it, down to the structs."""
    yield shape
    match shape:
        case inspect.Metadata(type=inner) | inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner):
            yield from _within(inner)
        case inspect.UnionType(types=inner) | inspect.TupleType(item_types=inner):
            for one in inner:
                yield from _within(one)
        case inspect.DictType(key_type=key, value_type=value):
            yield from _within(key)
            yield from _within(value)
