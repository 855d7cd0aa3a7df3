"""Doubles of an engine that answer the requests of methods, each beside what the plain double answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from msgspec import UNSET

from djinn_jupyter.api.arrays import from_numpy, to_numpy
from djinn_jupyter.engine.session.table import refusal
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import SessionsWouldSuffer, UnknownRule, UnknownSite, UsageError
from djinn_jupyter.methods.circuits.request import AttributeEdges, CircuitRecipe, CircuitsRun, EdgeRecipe, RunCircuits
from djinn_jupyter.methods.datasets.engine import shard
from djinn_jupyter.methods.datasets.request import Collect, Collected, CollectionProgressed, Score, Scored
from djinn_jupyter.methods.direct.request import Attribute, Attributed
from djinn_jupyter.methods.features.request import (
    EncodeFeatures,
    FeatureRead,
    FeaturesEncoded,
    LikeFeature,
    ReadFeature,
    WrittenToken,
)
from djinn_jupyter.methods.graphs.request import GraphRecipe, MakeGraph
from djinn_jupyter.methods.heads.request import (
    HeadExample,
    HeadRead,
    HeadsRead,
    OVCircuit,
    ReadHead,
    ReadHeads,
    TokenPair,
    VocabularyPair,
)
from djinn_jupyter.methods.sweep.request import Recipe, Sweep
from djinn_jupyter.methods.text.request import ReadText, ReadTextLens, TextLensRead, TextMeasured
from djinn_jupyter.methods.why.request import ExplainScore, ScoreExplained
from djinn_jupyter.wire import nouns, replies, requests
from djinn_jupyter.wire.base import SharedWith, is_anothers
from djinn_jupyter.wire.edits import name_of
from djinn_jupyter.wire.greeting import Checked
from djinn_jupyter.wire.looks import Circumstances
from djinn_jupyter.wire.modules import AdapterDescription, AddedModuleDescription, ModuleForm, ModuleIdentity
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.readings import Contribution, EditAtStop, ScorePart, ScoreSide, limits_of
from djinn_jupyter.wire.sites import parse_site
from djinn_jupyter.wire.texts import label
from tests.widgets import samples, trees
from tests.widgets.compared import apart, compared
from tests.widgets.edged import edges_attributed
from tests.widgets.graphed import graph_made
from tests.widgets.pooled import heads_of, pooled
from tests.widgets.swept import swept


class Adapted:
    """Takes any matrices; computes nothing."""

    sessions: dict[str, nouns.SessionDescription]
    adapters: tuple[AdapterDescription, ...] = ()

    def _addadapter(self, request: requests.AddAdapter) -> replies.Reply:
        adapter = AdapterDescription(
            name=request.name,
            folder=request.folder,
            digest=request.digest,
            modules=len(request.modules),
            targets=tuple(sorted({one.path.rpartition(".")[2] for one in request.modules})),
            bytes_held=sum(one.down.nbytes + one.up.nbytes for one in request.modules),
        )
        self.adapters = (*self.adapters, adapter)
        return replies.AdapterAdded(adapter=adapter)

    def _listadapters(self, _: Any) -> replies.Reply:
        by_name = {one.adapter: name for name, one in self.sessions.items()}
        using = {one.name: (by_name[one.name],) if one.name in by_name else () for one in self.adapters}
        return replies.Adapters(
            adapters=tuple(msgspec.structs.replace(one, sessions=using[one.name]) for one in self.adapters)
        )

    def _removeadapter(self, request: requests.RemoveAdapter) -> replies.Reply:
        self._require_adapter(request.name)
        self.adapters = tuple(one for one in self.adapters if one.name != request.name)
        return replies.Cleared(count=1)

    def _setadapter(self, request: requests.SetAdapter) -> replies.Reply:
        if request.adapter is not None:
            self._require_adapter(request.adapter)
        found = msgspec.structs.replace(self.sessions[request.session], adapter=request.adapter)
        self.sessions[request.session] = found
        return replies.Described(session=found)

    def _require_adapter(self, name: str) -> None:
        if all(one.name != name for one in self.adapters):
            raise UsageError(f"There is no adapter {name}; there are none.")


class Added:
    """Takes any tensors; computes nothing."""

    modules_added: tuple[AddedModuleDescription, ...] = ()

    def _addmodule(self, request: requests.AddModule) -> replies.Reply:
        widths = next(one.values.shape for one in request.tensors if one.name == "W_enc")
        at = str(parse_site(request.at))  # which the files may spell as TransformerLens does
        module = AddedModuleDescription(
            name=request.name,
            site=f"{request.name}.{at.rpartition('.')[2]}",
            at=at,
            kind=request.form.kind,
            activation=request.form.activation,
            inputs=widths[0],
            features=widths[1],
            folder=request.folder,
            digest=request.digest,
            bytes_held=sum(one.values.nbytes for one in request.tensors),
            error_term=request.error_term,
        )
        self.modules_added = (*self.modules_added, module)
        return replies.ModuleAdded(module=module)

    def _listaddedmodules(self, _: Any) -> replies.Reply:
        return replies.AddedModules(modules=self.modules_added)

    def _removemodule(self, request: requests.RemoveModule) -> replies.Reply:
        kept = tuple(one for one in self.modules_added if one.name != request.name)
        count = len(self.modules_added) - len(kept)
        if not count:
            raise UnknownSite(f"There is no added module {request.name}; there are none.")
        self.modules_added = kept
        return replies.Cleared(count=count)


class Attributing:
    """Says the same of every token."""

    stops: dict[str, replies.Paused | None]

    def _attribute(self, request: Attribute) -> replies.Reply:
        stop = self.stops[request.session]
        assert stop is not None
        tokens = tuple(
            nouns.TopToken(token=i, text=str(token), probability=0.5, logit=3.0)
            for i, token in enumerate(request.tokens)
        )
        first = ("z", 0) if request.heads else ("attn_out", None)
        return samples_of(stop, request.position, tokens, first)


def samples_of(
    stop: replies.Paused, position: int, tokens: tuple[nouns.TopToken, ...], first: tuple[str, int | None]
) -> Attributed:
    found = [
        Contribution(point=point, layer=layer, head=head, value=value)
        for layer in (0, 1)
        for (point, head), value in ((first, 1.25), (("mlp_out", None), -0.5))
    ]
    return Attributed(
        stop=samples.STOP,
        position=stop.positions[position] if position < 0 else position,
        layer=2,
        tokens=tokens,
        logit=3.0,
        embedding=1.0,
        constant=0.25,
        rest=0.25,
        contributions=tuple(found),
    )


class Collecting:
    def _checkcollect(self, _: Any) -> replies.Reply:
        return Checked()

    def _collect(self, request: Collect) -> replies.Reply:
        path = shard.shard_path(Path(request.folder), request.shard)
        note = {"format": 1, "model": {"name": "demo"}, "sites": list(request.sites), "positions": request.positions}
        note |= {"dtype": request.dtype, "shard": request.shard, "first": request.first}
        note |= {"mode": request.mode, "seed": request.seed}
        note |= {"computed": {"mode": request.mode, "rechecked": [0], "largest_difference": 2e-6, "notes": []}}
        note["computed"]["made"] = msgspec.to_builtins(made())
        note |= {"prompts": len(request.prompts), "last": request.last}
        rows = len(request.prompts) if request.positions else sum(map(len, request.prompts))
        tensors = {site: torch.zeros(rows, 4) for site in request.sites} | shard.tokens_of(request.prompts)
        stored = shard.write(path, tensors, note, threading.Event())
        told = CollectionProgressed(session=request.session, done=1, total=len(request.prompts))
        self.channel.publish(told)
        return Collected(
            shard=request.shard,
            path=str(path),
            prompts=len(request.prompts),
            bytes_stored=stored,
            existed=False,
            mode=request.mode,
            rechecked=(0,),
            largest_difference=2e-6,
        )

    def _score(self, request: Score) -> replies.Reply:
        tokens = tuple((1, 2, 3, 4, 5) if isinstance(line, str) else line for line in request.prompts)
        losses = torch.full((sum(map(len, tokens)) - len(tokens),), 0.5)
        return Scored(tokens=tokens, values=to_array(losses), made=made())

    def _tokenize(self, request: requests.Tokenize) -> replies.Reply:
        return replies.Tokenized(tokens=(1, 2, 3), texts=("a", " te", "xt"), text=request.text)


class Graphed:
    sessions: dict[str, nouns.SessionDescription]

    def _makegraph(self, request: MakeGraph) -> replies.Reply:
        stop = self.sessions[request.line].stop if isinstance(request.line, str) else None
        reply = graph_made(stop=stop, metric=request.metric or "logit(' x')")
        meant = msgspec.structs.replace(request, session="graph", line=(1, 2))
        made = GraphRecipe(asked=meant, modules=(("tc.0", "d"),), attention=None, by=PROVENANCE)
        return msgspec.structs.replace(reply, made=made)


class Edged(Graphed):
    sessions: dict[str, nouns.SessionDescription]

    def _attributeedges(self, request: AttributeEdges) -> replies.Reply:
        stop = self.sessions[request.corrupted].stop if isinstance(request.corrupted, str) else None
        meant = msgspec.structs.replace(request, session="edges", corrupted=(1, 2, 3), clean=(1, 2, 4))
        reply = edges_attributed(stop=stop, metric=request.metric)
        reply = msgspec.structs.replace(reply, method=request.method)
        made = EdgeRecipe(asked=meant, attention=None, by=PROVENANCE)
        return msgspec.structs.replace(reply, made=made, steps=request.steps)

    def _runcircuits(self, request: RunCircuits) -> replies.Reply:
        scored = edges_attributed(metric=request.metric)
        edges = int((~np.isnan(to_numpy(scored.scores))).sum())
        return CircuitsRun(
            metric=request.metric,
            writers=scored.writers,
            readers=scored.readers,
            values=tuple(-1.0 + 3.0 * len(one) / edges for one in request.circuits),
            corrupted=-1.0,
            clean=2.0,
            made=CircuitRecipe(asked=request, attention=None, by=PROVENANCE),
        )


SAE: Final = ModuleIdentity(
    name="sae",
    at="resid_post.4",
    form=ModuleForm(kind="sae", dtype="float32"),
    inputs=4,
    features=48,
    folder="saes/4",
    digest="d",
    error_term=True,
    bytes_held=0,
)


def made(modules: tuple[ModuleIdentity, ...] = ()) -> Circumstances:
    """Return the circumstances of what the double says."""
    by = {field.name: "double" for field in msgspec.structs.fields(Provenance)} | {"threads": 1, "tensor_parallel": 1}
    return Circumstances(rules=(), attention=None, by=msgspec.convert(by, Provenance), modules=modules)


def heads_read(*, patterns: bool, layers: int = 2, heads: int = 3, length: int = 4) -> HeadsRead:
    scores = torch.linspace(0, 1, 3 * layers * heads, dtype=torch.float64).reshape(3, layers, heads)
    scores[1, -1, -1] = torch.nan
    pattern = torch.eye(length).roll(1, 0).expand(layers, heads, length, length).contiguous()
    return HeadsRead(
        layers=tuple(range(layers)),
        scores=to_array(scores),
        counted=(length - 1, 2, 2),
        texts=tuple(f" t{n}" for n in range(length)),
        patterns=to_array(pattern) if patterns else None,
        pooled=1,
        lines=(tuple(range(length)),),
        made=made(),
    )


def text_read(texts: tuple[str, ...] = samples.PROMPT, generated: int = 1, **fields: Any) -> TextMeasured:
    """Return the measures of a text whose tokens are ever less probable."""
    length, rows = len(texts), samples.lens_rows(tuple(range(len(texts))), texts)
    return TextMeasured(
        tokens=tuple(range(length)),
        texts=texts,
        generated=((length - generated, length),) if generated else (),
        log_probabilities=to_array(torch.linspace(-0.1, -7, length - 1)),
        entropies=to_array(torch.linspace(0, 3, length)),
        rows=rows,
        made=made(),
        **fields,
    )


def lens_read(
    sites: tuple[str, ...], texts: tuple[str, ...] = samples.PROMPT, top: int = 5, chosen: tuple[int, ...] = ()
) -> TextLensRead:
    """Return the lens of a text, ever surer of its next token with each layer."""
    count, length = len(sites), len(texts)
    best = torch.arange(count * length * top, dtype=torch.int32).reshape(count, length, top) % len(samples.WORDS)
    chances = torch.linspace(0.1, 0.9, count)[:, None, None] / torch.arange(1, top + 1)
    return TextLensRead(
        tokens=tuple(range(length)),
        texts=texts,
        generated=((length - 1, length),),
        sites=sites,
        top_tokens=to_array(best),
        top_probabilities=to_array(chances.expand(-1, length, -1)),
        entropies=to_array(torch.ones(count, length)),
        next_probabilities=to_array(torch.linspace(0.1, 0.8, count)[:, None].expand(-1, length - 1)),
        chosen=to_array(torch.full((count, length, len(chosen)), 0.25)),
        chosen_tokens=chosen,
        spelled=(*enumerate(samples.WORDS), *((token, f" t{token}") for token in chosen)),
        made=made(),
    )


def feature_read(site: str = "sae.4[17]", top: int = 10, **fields: Any) -> FeatureRead:
    """Return the decoder of a feature that promotes the first words, and suppresses the last."""
    name, _, unit = site.rstrip("]").partition("[")
    words = [*enumerate(samples.WORDS)][:top]
    given = {
        "site": site,
        "unit": int(unit) if unit.isdecimal() else 0,
        "kind": "sae",
        "features": 48,
        "at": f"resid_post.{name.rpartition('.')[2]}",
        "layer": 4,
        "writes": "resid_post.4",
        "like": tuple(LikeFeature(feature=20 + n, cosine=0.9 - n / 20) for n in range(min(top, 10))),
        "promoted": tuple(WrittenToken(token=n, text=text, logit=2.0 - n / 10) for n, text in words),
        "suppressed": tuple(WrittenToken(token=n, text=text, logit=n / 10 - 2.0) for n, text in words[::-1]),
        "made": made(modules=(SAE,)),
        "folded": True,
        **fields,
    }
    return FeatureRead(**given)


def head_read(
    texts: tuple[str, ...] = samples.PROMPT, layer: int = 1, head: int = 2, lines: int = 2, count: int = 10
) -> HeadRead:
    """Return a head that attends to the token before, over the same prompt again and again."""
    length, places = len(texts), range(1, min(count + 1, len(texts)))
    pairs = tuple(TokenPair(query=at, key=at - 1, count=2, summed=2.0 / at) for at in places)
    example = HeadExample(
        line=0, query=length - 1, key=length - 2, weight=0.75, first=0, weights=(*[0.0] * (length - 2), 0.75, 0.25)
    )
    circuit = OVCircuit(
        pairs=tuple(VocabularyPair(given=at, made=0, value=3.0 / at) for at in places), copying=0.5, notes=("a gain",)
    )
    return HeadRead(
        layer=layer,
        head=head,
        lines=(tuple(range(length)),) * lines,
        queries=lines * (length - 1),
        first_share=0.25 if lines else None,
        summed=pairs if lines else (),
        mean=pairs if lines else (),
        examples=(example,) if lines else (),
        circuit=circuit,
        unread="",
        spelled=tuple(enumerate(texts)),
        made=made(),
    )


def explained(texts: tuple[str, ...] = samples.PROMPT, count: int = 30, **fields: Any) -> ScoreExplained:
    """Return the parts of a score, ever smaller and of changing signs; those of the query are half as large."""
    values = [(-1) ** n * 3.0 / (n + 1) for n in range(count)]
    parts = [ScorePart(point="z", layer=n // 3, unit=n % 3, value=value) for n, value in enumerate(values)]
    halves = [msgspec.structs.replace(one, value=one.value / 2) for one in parts]
    return ScoreExplained(
        tokens=tuple(range(len(texts))),
        texts=texts,
        query=len(texts) - 1,
        key=0,
        score=sum(values) + 0.5,
        scale=0.125,
        given=1.5,
        weight=0.25,
        by_key=ScoreSide(parts=tuple(parts), constant=0.5, rest=0.0),
        by_query=ScoreSide(parts=tuple(halves), constant=0.5, rest=sum(values) / 2),
        made=made(),
        **fields,
    )


class Headed:
    def _readfeature(self, request: ReadFeature) -> replies.Reply:
        given = {} if request.layer is UNSET else {"layer": request.layer}
        return feature_read(request.site, request.top, **given)

    def _encodefeatures(self, request: EncodeFeatures) -> replies.Reply:
        rows, units = request.values.shape[0], len(request.units)
        return FeaturesEncoded(values=to_array(torch.linspace(-1, 4, rows)[:, None].expand(rows, units)))

    def _detokenize(self, request: requests.Detokenize) -> replies.Reply:
        texts = tuple(f" t{token}" for token in request.tokens)
        return replies.Tokenized(tokens=request.tokens, texts=texts, text="".join(texts))

    def _readhead(self, request: ReadHead) -> replies.Reply:
        return head_read(layer=request.layer, head=request.head, lines=len(request.lines))

    def _explainscore(self, request: ExplainScore) -> replies.Reply:
        return explained()

    def _readtextlens(self, request: ReadTextLens) -> replies.Reply:
        chosen = tuple(100 + n if isinstance(one, str) else one for n, one in enumerate(request.tokens))
        return lens_read(request.sites, top=request.top, chosen=chosen)

    def _readtext(self, request: ReadText) -> replies.Reply:
        given = {
            name: to_array(torch.linspace(-2, 4, len(samples.PROMPT), dtype=torch.float64).to(dtype))
            for name, asked, dtype in (
                ("metrics", request.metric, torch.float64),
                ("site_values", request.site, torch.float32),
            )
            if asked
        }
        return text_read(**given)

    def _readheads(self, request: ReadHeads) -> replies.Reply:
        read = heads_read(patterns=request.patterns)
        return msgspec.structs.replace(read, lines=read.lines * len(request.lines))

    def _readweight(self, request: requests.ReadWeight) -> replies.Reply:
        rows = len(request.rows) if request.rows is not None else 3
        return replies.WeightRead(name=request.name, values=to_array(torch.ones(rows, 2)))


class Looked:
    _present: Callable[[str], replies.Paused]
    _site: Callable[[str], str]

    def _inspect(self, request: requests.Inspect) -> replies.Inspected:
        stop = self._present(request.session)
        site = stop.site if request.site is None else self._site(request.site)
        positions = tuple(stop.positions[p] if p < 0 else p for p in request.positions or stop.positions)
        count = len(positions)
        if parse_site(site).point == "pattern":
            weights = np.tril(np.ones((count, len(stop.positions)), dtype=np.float32))
            value = np.repeat((weights / weights.sum(-1, keepdims=True))[:, None], samples.HEADS, axis=1)
        else:
            value = samples.values(count, samples.WIDTH)
        snapshot = nouns.Snapshot(
            stop=stop.stop,
            site=site,
            value=from_numpy(value),
            axes="T H K" if value.ndim == 3 else "T D",
            positions=positions,
            dtype="float32",
            exactness="exact",
        )
        return replies.Inspected(snapshot=snapshot)

    def _readpooled(self, request: requests.ReadPooled) -> replies.Reply:
        seen = self._inspect(
            requests.Inspect(session=request.session, site=request.site, positions=request.positions)
        ).snapshot
        value = to_numpy(seen.value)
        last = from_numpy(value[-request.last :]) if request.last else None
        seen_from = {"site": seen.site, "axes": seen.axes, "stop": seen.stop}
        of_heads = heads_of(value, request) if request.heads else {}
        drawn = pooled(value, seen.positions, alone=request.alone, last=last, **seen_from, **of_heads)
        return replies.PooledRead(pooled=drawn)

    def _compare(self, request: requests.Compare) -> replies.Reply:
        stops = [self._present(name) for name in (request.session, request.other)]
        a, b = (samples.values(len(stop.positions), samples.WIDTH) for stop in stops)
        return compared(a, b, site=stops[0].site, apart=apart(a, b, last=request.last))

    def _lens(self, request: requests.Lens) -> replies.Reply:
        stop = self._present(request.session)
        positions = request.positions or stop.positions
        positions = [stop.positions[p] if p < 0 else p for p in positions]
        rows = samples.lens_rows(tuple(positions), stop.texts, request.top, request.tokens)
        return replies.LensRead(stop=stop.stop, site=request.site or stop.site, rows=rows)


class Moved:
    sessions: dict[str, nouns.SessionDescription]
    stops: dict[str, replies.Paused | None]

    @cached_property
    def moves(self) -> dict[str, tuple[nouns.SessionDescription, replies.Paused | None]]:
        return {}

    def _readprovenance(self, _: Any) -> replies.Reply:
        return replies.ProvenanceRead(provenance=PROVENANCE)

    def _sendaway(self, request: requests.SendAway) -> replies.Reply:
        self.moves[request.move] = self.sessions[request.session], self.stops.get(request.session)
        return replies.SentAway(bytes_written=1)

    def _takein(self, request: requests.TakeIn) -> replies.Reply:
        if request.session in self.sessions:
            raise UsageError(f"There is a session {request.session!r} already.")
        self.sessions[request.session], self.stops[request.session] = self.moves.pop(request.move)
        return replies.Opened(session=self.sessions[request.session], created=True)

    def _settlemove(self, request: requests.SettleMove) -> replies.Reply:
        if request.move in self.moves:
            return replies.MoveSettled(stayed=True)
        del self.sessions[request.session]
        return replies.MoveSettled(stayed=False)


ASKER = ("kernel-1", "work/paris.ipynb")


class OwnedSession:
    """A session as its description tells of it: the double enters no session that was recovered for another."""

    def __init__(self, told: nouns.SessionDescription) -> None:
        self.holder, self.notebook = told.holder, told.notebook
        self.holder_notebook = None if told.holder is None else told.notebook


class Owned:
    sessions: dict[str, nouns.SessionDescription]

    def require_own(self, request: requests.OwnerRequest) -> None:
        there = self.sessions.get(request.session)
        if there is None or request.force or not is_anothers(there, *ASKER):
            return
        deed = request.deed
        if deed is not None:
            raise SessionsWouldSuffer(refusal(OwnedSession(there), label(there.name), deed))


PROVENANCE = Provenance(
    model="demo", revision=None, architecture="LlamaForCausalLM", configuration="c", weights="w", dtype="float32",
    attention="sdpa", device="cpu", processor="one", threads=1, torch="2", transformers="4", djinn="0",
)  # fmt: skip


class SweepJob:
    def _checksweep(self, _: Any) -> replies.Reply:
        return Checked()

    def _sweep(self, request: Sweep) -> replies.Reply:
        reply = swept(
            mode=request.mode, seed=request.seed, metric=request.metrics, over=request.over, in_pairs=request.in_pairs
        )
        meant = msgspec.structs.replace(request, corrupted=(1, 2, 3), continued=None)
        return msgspec.structs.replace(reply, made=Recipe(asked=meant, attention=None, by=PROVENANCE))


class Switched:
    """Answers of an engine with one `rules` entry and one edit a stop."""

    sessions: dict[str, nouns.SessionDescription]
    stops: dict[str, replies.Paused | None]
    _site: Callable[[str], str]

    def _share(self, request: requests.Share) -> replies.Reply:
        given = () if request.access is None else (SharedWith(person=request.person, access=request.access),)
        found = msgspec.structs.replace(self.sessions[request.session], shares=given)
        self.sessions[request.session] = found
        return replies.Described(session=found)

    def _setattention(self, request: requests.SetAttention) -> replies.Reply:
        found = msgspec.structs.replace(self.sessions[request.session], attention=request.attention)
        self.sessions[request.session] = found
        return replies.Described(session=found)

    def _steer(self, request: requests.Steer) -> replies.Reply:
        rule = samples.rule(
            site=self._site(request.site),
            what=", ".join((f"{name_of(request.edit)} at {self._site(request.site)}", *limits_of(request))),
            edit=request.edit,
            positions=request.positions,
            onward=request.onward,
            on=request.on,
            when=request.when,
            note="' a' may be meant otherwise." if request.when and "'a'" in request.when else None,
            passes_met=0,
            passes_changed=0,
            mean_relative_size=None,
        )
        self._rules(request.session, rule)
        return replies.Steered(rule=rule, existed=False)

    def _unsteer(self, request: requests.Unsteer) -> replies.Reply:
        count = len(self.sessions[request.session].rules)
        self._rules(request.session)
        return replies.Cleared(count=count)

    def _rules(self, session: str, *rules: nouns.RuleDescription) -> None:
        self.sessions[session] = msgspec.structs.replace(self.sessions[session], rules=rules)

    def _enablerule(self, request: requests.EnableRule) -> replies.Reply:
        told = self.sessions[request.session]
        rules = tuple(msgspec.structs.replace(r, enabled=request.enabled) for r in told.rules)
        if request.number not in [rule.number for rule in rules]:
            raise UnknownRule(f"There is no steering rule {request.number}.")
        self.sessions[request.session] = msgspec.structs.replace(told, rules=rules)
        return replies.Steered(rule=rules[0], existed=True)

    def _enableedit(self, request: requests.EnableEdit) -> replies.Reply:
        stop = self.stops[request.session]
        switched = EditAtStop(number=1, site=stop.site, what="an edit", relative_size=0.1, enabled=request.enabled)
        influences = msgspec.structs.replace(stop.influences, edits=(switched,))
        edits = ("an edit",) if request.enabled else ()
        self.stops[request.session] = msgspec.structs.replace(stop, edits=edits, influences=influences)
        return self.stops[request.session]

    def _readtree(self, _: Any) -> replies.Reply:
        return replies.Tree(branches=trees.branches())
