"""Rebuild a session of this engine from an image: resolve taps, make samplers again, put values on the device. Refuses
an image that contradicts itself or this model, before anything of the engine is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerRun, LayerState
from djinn_jupyter.engine.memory.kv.rows import Rows
from djinn_jupyter.engine.model.discovery.model_map import check_selector
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import conditions
from djinn_jupyter.engine.passes.breakpoints import Breakpoint, Rule, Watch
from djinn_jupyter.engine.passes.controller import Completed, Halted, Plan, SavedStates, Target, Yielded, make_plan
from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.frame import Frame, Override
from djinn_jupyter.engine.passes.site_value import Guard
from djinn_jupyter.engine.session.generation import Generation, make_sampler
from djinn_jupyter.engine.session.history import CachedEdit, History, Passes, PassLog, StopRecord
from djinn_jupyter.engine.session.queries import fits_layer, put_back
from djinn_jupyter.engine.session.residence import Blocked, Pieces
from djinn_jupyter.engine.session.run import boundary_tap
from djinn_jupyter.engine.session.runtime import Runtime, entered
from djinn_jupyter.engine.session.session import AnsweredRequests, Grants, MoveUnderWay, Session
from djinn_jupyter.engine.store import image as kept
from djinn_jupyter.engine.store.image import GroupRows
from djinn_jupyter.engine.store.values import Kept, KeptStored, give_back, nowhere
from djinn_jupyter.engine.system.device import to_home
from djinn_jupyter.errors import CheckpointRefused, DjinnError, StorageFailed
from djinn_jupyter.modules.engine.kept import adapter_of_kept, tap_of_kept
from djinn_jupyter.wire.request_base import LONGEST_NAME, is_carried

Pair = tuple[Tensor, Tensor]
Place = tuple[int, int | None, int]
"""A layer, the window of its group, and in how many groups of that window it was before."""
OTHERWISE = "Its keys and values have other layers or shapes than this model."


def rows_in_groups(given: Sequence[GroupRows], groups: Sequence[GroupGeometry]) -> tuple[Rows, ...]:
    """Return the rows of an image by the page groups of this engine. CheckpointRefused if the layers differ."""
    own = [(tuple(layer.cache_layer for layer in group.layers), group.window) for group in groups]
    if [(one.layers, one.window) for one in given] == own:
        return tuple(Rows(first=g.first, end=g.end, runs=tuple((r.keys, r.values) for r in g.runs)) for g in given)
    pairs = [(one, pair) for one in given for pair in _pairs(one)]
    held = dict(zip(_places([(one.layers, one.window) for one in given]), pairs, strict=True))
    wanted = _places(own)
    if set(held) != set(wanted):
        raise CheckpointRefused(OTHERWISE)
    found = iter([held[place] for place in wanted])
    return tuple(_group(list(islice(found, len(group.layers))), group) for group in groups)


def _places(groups: Sequence[tuple[Sequence[int], int | None]]) -> list[Place]:
    """Return the place of each layer of each group, in order. A layer with an indexer is also in the group of its keys,
    and in that of their positions: these come in one order under every placement."""
    before: Counter[tuple[int, int | None]] = Counter()
    places = []
    for layer, window in ((layer, window) for layers, window in groups for layer in layers):
        places.append((layer, window, before[layer, window]))
        before[layer, window] += 1
    return places


def _pairs(given: GroupRows) -> list[Pair]:
    """Return the keys and values of each layer of a group. CheckpointRefused if layers or positions are too many or
    few."""
    pairs = [(keys, values) for run in given.runs for keys, values in zip(run.keys, run.values, strict=True)]
    count = given.end - given.first
    if len(pairs) != len(given.layers) or any(rows.shape[1] != count for pair in pairs for rows in pair):
        raise CheckpointRefused(OTHERWISE)
    return pairs


def _group(held: Sequence[tuple[GroupRows, Pair]], group: GroupGeometry) -> Rows:
    """Return one group's rows: of the positions that all its layers have, up to the end of those that ran furthest in a
    stopped pass. Beyond the others' ends are zeros, which are written before they are read."""
    first, end = max(one.first for one, _ in held), max(one.end for one, _ in held)
    whole = [tuple(_between(rows, one.first, first, end) for rows in pair) for one, pair in held]
    return Rows(first=first, end=end, runs=tuple(_run(whole[r.first : r.first + r.layers], r) for r in group.runs))


def _between(rows_HTD: Tensor, begins: int, first: int, end: int) -> Tensor:
    there = rows_HTD[:, first - begins :]
    missing = rows_HTD.new_zeros((there.shape[0], end - first - there.shape[1], there.shape[2]))
    return torch.cat([there, missing], 1)


def _run(layers: Sequence[tuple[Tensor, ...]], run: LayerRun) -> Pair:
    try:
        return torch.stack([keys for keys, _ in layers]), torch.stack([values for _, values in layers])
    except RuntimeError as error:
        raise CheckpointRefused(OTHERWISE) from error


LEFT_OUT: Final = "Journals and checkpoints have those in memory."
HAS_MAPPING: Final = "what its layers hand on"
BEYOND_NUMBERS: Final = 2**53  # browsers count no further


def load_session(
    runtime: Runtime, image: kept.SessionImage, *, name: str, owner: str, holder: str | None, stops_kept: int
) -> Session:
    """Return a session like the image, not yet in the engine's table and without rows. Raises CheckpointRefused where
    it does not fit this engine."""
    try:
        check(runtime, image)
        runtime = runtime.of_person(name).attending(image.attention)
        runtime = runtime.adapted(adapter_of_kept(runtime, image.adapter))
        return _Load(runtime, image, stops_kept).session(name, owner, holder)
    except CheckpointRefused:
        raise
    except (DjinnError, IndexError, KeyError, TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise CheckpointRefused(f"It does not fit this engine: {str(error) or type(error).__name__}") from error


def check(runtime: Runtime, image: kept.SessionImage) -> None:
    """Raise CheckpointRefused where numbers of the image contradict each other or the model."""
    _check_names(image)
    vocabulary, length = runtime.description.vocab_size, len(image.tokens)
    wrong = [
        not 0 <= image.committed <= length,
        any(not 0 <= token < vocabulary for token in image.tokens),
        image.paused != (image.frame is not None and image.history.present is not None),
        image.committed > 0 and (not image.trail.passes or image.trail.passes[-1].end != image.committed),
        image.line is None and bool(image.tokens),
        not 0 <= (image.stop or 0) <= (image.edition or 0) < BEYOND_NUMBERS,
        any(frame.committed + len(frame.tokens) > length for frame in image.frames[:1] if image.paused),
    ]
    if any(wrong):
        raise CheckpointRefused("It contradicts itself, so it was not written by Djinn or is damaged.")


def _check_names(image: kept.SessionImage) -> None:
    """Raise CheckpointRefused for a name that no request carries: no request could reach the session."""
    parent = None if image.forked_from is None else image.forked_from.session
    for of, name in (("name", image.name), ("holder", image.holder), ("parent", parent)):
        if name is not None and not is_carried(name):
            raise CheckpointRefused(
                f"Its {of} has {len(name)} characters, and a name has 1 to {LONGEST_NAME}, so it was not written by "
                "Djinn or is damaged."
            )


def rows_of(runtime: Runtime, image: kept.SessionImage) -> tuple[Rows, ...]:
    """Return the image's rows, checked against the page groups of this engine."""
    groups = runtime.forward.geometry.groups
    rows = rows_in_groups(image.rows or (), groups)
    fits = all(r.fits(group) for r, group in zip(rows, groups, strict=True))
    if not fits or any(not 0 <= r.first <= r.end or r.end < image.committed for r in rows):
        raise CheckpointRefused(OTHERWISE)
    return rows


def states_of(
    runtime: Runtime, states: kept.StatesImage, fetch: Callable[[KeptStored], Tensor] = nowhere
) -> dict[int, LayerState]:
    """Return the states by layer; `fetch` makes the tensors that are stored elsewhere."""
    return {layer: _layer_state(runtime, layer, value, fetch) for layer, value in states.items()}


class _Load:
    """One session in progress: each frame and generation is made once."""

    def __init__(self, runtime: Runtime, image: kept.SessionImage, stops_kept: int) -> None:
        self.stops_kept = stops_kept
        self.runtime, self.image, self.device = runtime, image, runtime.forward.device
        self.has_rows = image.rows is not None or not (image.committed or image.paused)
        self.generations = [self._generation(generation) for generation in image.lines]
        self.frames = [self._frame(frame) for frame in image.frames]

    def session(self, name: str, owner: str, holder: str | None) -> Session:
        image = self.image
        return image.like(
            Session,
            name=name,
            owner=owner,
            holder=holder,
            cache=self.runtime.space.new_cache(),
            history=self._history(image.history),
            state="paused" if image.paused else "idle",
            tokens=list(image.tokens),
            saved_states=states_of(self.runtime, image.journal),
            pass_log=self._pass_log(image.trail),
            exactness=image.exactness if self.has_rows or image.lost else "recomputed",
            needs_recompute=not self.has_rows,
            frame=None if image.frame is None else self.frames[image.frame],
            edits=list(image.edits_made),
            generation=None if image.line is None else self.generations[image.line],
            logits_1V=image.logits,
            breakpoints={one.number: self._breakpoint(one) for one in image.breakpoints},
            rules={one.number: self._rule(one) for one in image.rules},
            watches={watch.key: watch for watch in map(self._watch, image.watches)},
            adapter=self.runtime.forward.adapter,
            shares=Grants(),
            answered=AnsweredRequests(),
            moving=MoveUnderWay(image.moving),
        )

    def _history(self, image: kept.HistoryImage) -> History:
        stops = [self._stop(stop) for stop in image.stops]
        if image.present is not None and not 0 <= image.present < len(stops):
            raise CheckpointRefused("It stands at a stop that it does not have.")
        return image.like(History, kept=self.stops_kept, stops=stops, why=LEFT_OUT)

    def _stop(self, image: kept.StopImage) -> StopRecord:
        return image.like(
            StopRecord,
            frame=self.frames[image.frame],
            generation=self.generations[image.line],
            tokens=(*self.image.tokens[: image.tokens.shared], *image.tokens.rest),
            left_as=None if image.left_as is None else self.frames[image.left_as],
        )

    def _generation(self, image: kept.GenerationImage) -> Generation:
        model = self.runtime.forward.model
        sampler = make_sampler(model, image.sampling, image.prompt_length, image.max_new_tokens, self.device)
        sampler.generator.set_state(image.generator)
        return image.like(
            Generation,
            sampler=sampler,
            eos=frozenset(image.eos),
            drawn=list(image.drawn),
            log_probabilities=list(image.log_probabilities),
            states={length: self._kept_states(image, length) for length in image.state_lengths},
        )

    def _kept_states(self, image: kept.GenerationImage, length: int) -> dict[int, LayerState]:
        """Return a generation's states at `length`; empty for a light image: they are on disk, or recomputed."""
        return {} if self.image.rows is None else states_of(self.runtime, image.states[length])

    def _frame(self, image: kept.FrameImage) -> Frame:
        self._check_hidden(image)
        home = self.runtime.forward.home_at(image.boundary)
        shared = give_back(image.shared, home)
        anatomy = self.runtime.forward.anatomy
        if not isinstance(shared, dict) or not set(shared) <= {
            *anatomy.mappings,
            *(given for _, given in anatomy.handed),
        }:
            raise CheckpointRefused(f"A frame of it holds {HAS_MAPPING}, and this model hands on nothing of that name.")
        return image.like(
            Frame,
            hidden=None if image.hidden is None else to_home(image.hidden, home),
            tap=None if image.tap is None else self._tap(image.tap).at(image.tap.site.whole()),
            raw=None if image.raw is None else self._at_home(image.raw, image.tap),
            overrides=tuple(self._override(override) for override in image.inlays),
            shared=shared,
            states=None if image.states is None else states_of(self.runtime, image.states),
            start_states=None if image.start_states is None else states_of(self.runtime, image.start_states),
        )

    def _check_hidden(self, image: kept.FrameImage) -> None:
        if not 0 <= image.boundary <= self.runtime.forward.layers:
            raise CheckpointRefused("A frame of it stands at a layer that this model does not have.")
        anatomy, hidden = self.runtime.forward.anatomy, image.hidden
        if hidden is not None and (
            hidden.shape[-1:] != (anatomy.hidden_size,)
            or len(image.tokens) not in hidden.shape
            or hidden.dtype != anatomy.dtypes[image.boundary]
        ):
            raise CheckpointRefused("A hidden state in it has not the shape and dtype of this model.")

    def _override(self, image: kept.OverrideImage) -> Override:
        return replace(self._override_as_kept(image), raw=self._at_home(image.raw, image.tap))

    def _at_home(self, raw: Tensor, met: kept.TapImage | None) -> Tensor:
        """Return a value on the device of its tap."""
        forward = self.runtime.forward
        return to_home(raw, forward.device if met is None else forward.home_of(self._tap(met)))

    def _override_as_kept(self, image: kept.OverrideImage) -> Override:
        changes = tuple(change.like(Change) for change in image.changes)
        return image.like(Override, tap=self._tap(image.tap).at(image.tap.site.whole()), changes=changes)

    def _tap(self, image: kept.TapImage) -> Tap:
        if image.added is None:
            tap = self.runtime.resolve(image.site)
        else:
            tap = tap_of_kept(self.runtime, image.added)
            check_selector(image.site, tap)
        if tap.kind != image.kind:
            raise CheckpointRefused(f"{image.site} is met as {tap.kind} in this engine, and was as {image.kind} there.")
        return tap

    def _breakpoint(self, image: kept.BreakpointImage) -> Breakpoint:
        return image.like(
            Breakpoint,
            site=image.tap.site,
            tap=self._tap(image.tap),
            condition=None if image.when is None else conditions.parse(image.when),
            text_of=self.runtime.tokenizer.text_of,
            id_of=self.runtime.tokenizer.token_id,
        )

    def _rule(self, image: kept.RuleImage) -> Rule:
        rule = self._held(image)
        rule.restore_sizes(image.sizes)
        return rule

    def _held(self, image: kept.HeldRule) -> Rule:
        taps = (image.tap, *image.more)
        return image.like(
            Rule,
            sites=tuple(one.site for one in taps),
            taps=tuple(map(self._tap, taps)),
            guard=None if image.when is None else self._guard(image.when),
        )

    def _guard(self, text: str) -> Guard:
        texts = self.runtime.tokenizer
        return Guard(condition=conditions.parse(text), text_of=texts.text_of, id_of=texts.token_id)

    def _watch(self, image: kept.WatchImage) -> Watch:
        return image.like(
            Watch,
            site=image.tap.site,
            tap=self._tap(image.tap),
            values=list(image.values),
            positions=list(image.positions),
            runs=list(image.runs),
            run=self.image.runs,
        )

    def _pass_log(self, image: kept.PassLogImage) -> PassLog:
        rules = [tuple(self._held(rule) for rule in held) for held in image.rules]
        for one in image.edited:
            self._check_edited(one)
        return PassLog([self._passes(one, rules[one.rules]) for one in image.passes], list(image.edited))

    def _check_edited(self, image: CachedEdit) -> None:
        """Raise CheckpointRefused where the rows of an edit of committed rows are not those of the site."""
        forward, layer = self.runtime.forward, image.site.layer
        layers = () if layer is None else forward.anatomy.cache_layers_of(layer)
        fits = len(layers) == 1 and fits_layer(forward.geometry.layers[layers[0]], image.site, image.rows_nHD)
        if not fits or len(image.positions) != len(image.rows_nHD) or not 0 < image.at <= self.image.committed:
            raise CheckpointRefused("An edit of its keys and values has not their shape in this model.")

    def _passes(self, image: kept.PassesImage, rules: tuple[Rule, ...]) -> Passes:
        entry = None if image.entry is None else self._entry(image, image.entry)
        return image.like(Passes, rules=rules, entry=entry)

    def _entry(self, image: kept.PassesImage, entry: kept.EntryImage) -> Frame:
        return entry.like(
            Frame,
            tokens=self.image.tokens[image.start : image.end],
            committed=image.start,
            step=int(image.decode),
            tap=None if entry.tap is None else self._tap(entry.tap).at(entry.tap.site.whole()),
            overrides=tuple(self._override_as_kept(override) for override in entry.inlays),
        )


def _layer_state(runtime: Runtime, layer: int, value: Kept, fetch: Callable[[KeptStored], Tensor]) -> LayerState:
    layers = runtime.forward.geometry.layers
    home = runtime.forward.home_of_cache_layer(layer) if 0 <= layer < len(layers) else runtime.forward.device
    fields = give_back(value, home, fetch)
    if not (isinstance(fields, dict) and 0 <= layer < len(layers) and tuple(fields) == layers[layer].state_fields):
        raise CheckpointRefused("Its recurrent states are those of another version of transformers.")
    return LayerState(fields=tuple(fields.items()))


# Recompute the rows and states that a session lost with an earlier process: run its tokens once more, in the same
# passes, under the original rules and with the original overrides. Draws no random number, fires no breakpoint, records
# no watch, does no accounting of rules.


def recompute(runtime: Runtime, session: Session) -> Pieces:
    """Run the passes again, in steps that yield like a prefill. The session owns the results meanwhile, so that it
    leaves the device with them where the work waits for room. An error leaves the session lost, as before."""
    cache = runtime.space.new_cache()
    session.take_cache(cache)  # the former is empty, or belongs to other work that recomputes it independently
    try:
        yield from _Recomputing(runtime, session, cache).run()
        session.count_rows(cache)
    finally:
        if session.needs_recompute or session.cache is not cache:
            cache.free()


class _Recomputing:
    """Runs one session's passes into a cache that the session takes over at the end."""

    def __init__(self, runtime: Runtime, session: Session, cache: PagedCache) -> None:
        self.runtime, self.session, self.cache = runtime, session, cache
        self.saved_states: SavedStates = {}
        self._prompt_end = 0  # the tokens after it were generated; a rule's condition may ask for the step
        self._oldest = session.history.oldest_position(session.committed)

    def run(self) -> Pieces:
        self._keep_states()
        edits = list(self.session.pass_log.edited)
        for passes in self.session.pass_log.passes:
            self._prompt_end = self._prompt_end if passes.decode else passes.end
            for frame in self._frames(passes):
                yield from self._pass(frame, passes)
                while edits and edits[0].at == self.cache.length:
                    put_back(self.runtime, self.cache, edits.pop(0))
                self.cache.release_behind(self._oldest)
                self._keep_states()
        if edits:
            raise StorageFailed(f"An edit of keys and values was made at {edits[0].at} positions, where no pass ended.")
        stopped = self.session.frame
        if stopped is not None:
            yield from self._to_the_stop(stopped)

    def _frames(self, passes: Passes) -> Iterator[Frame]:
        for start in range(passes.start, passes.end, passes.each):
            tokens = self.session.tokens[start : min(start + passes.each, passes.end)]
            step = start + len(tokens) - self._prompt_end if passes.decode else 0
            yield Frame(tokens=tuple(tokens), committed=start, step=step)

    def _pass(self, frame: Frame, passes: Passes) -> Pieces:
        """Run a pass; one that stopped runs without interruption, as its stop has no room beside the present."""
        after = None
        if passes.entry is not None:
            after = passes.entry.tap or boundary_tap(self.runtime, passes.entry.boundary)
            homes = self.runtime.forward.home_of
            overrides = tuple(replace(i, raw=to_home(i.raw, homes(i.tap))) for i in passes.entry.overrides)
            frame = replace(frame, overrides=overrides)
        yield from self._enter(frame, self._plan(rules=passes.rules, after=after))

    def _to_the_stop(self, stopped: Frame) -> Pieces:
        """Recompute the in-flight rows below the present stop; the stop itself is as stored."""
        assert stopped.tap is not None
        target = Target(tap=stopped.tap, step=stopped.step)
        reached = yield from self._enter(stopped.at_start(), self._plan(halts=(target,), bare=True))
        if isinstance(reached, Completed):
            raise StorageFailed("A stop of this session was not met again when its tokens were run once more.")
        if stopped.states is not None:
            self.cache.restore_all(stopped.states)
        self.cache.flush()

    def _plan(self, **told: Any) -> Plan:
        return make_plan(**told, counted=False, yields=self.runtime.giving_way.asked)

    def _enter(self, frame: Frame, plan: Plan) -> Generator[Blocked | None, None, Halted | Completed]:
        while True:
            outcome = yield from entered(self.runtime, self.session, frame, plan, self.cache, self.saved_states)
            self.runtime.counters.count_layers(outcome.layers_run)
            yield None
            if not isinstance(outcome, Yielded):
                return outcome
            frame = outcome.frame

    def _keep_states(self) -> None:
        """Capture the states at the lengths where generations had kept recurrent states."""
        length = self.cache.length
        for generation in self.session.generations:
            if length in generation.states and not generation.states[length]:
                generation.states[length] = self.cache.capture_all()
