"""Make the image of a session. Reads only; the image shares the session's tensors, which are never written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerState
from djinn_jupyter.engine.memory.kv.rows import Rows
from djinn_jupyter.engine.passes.breakpoints import Breakpoint, Rule, Watch
from djinn_jupyter.engine.passes.frame import Frame, Override
from djinn_jupyter.engine.session.generation import Generation
from djinn_jupyter.engine.session.history import Passes, PassLog, StopRecord
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store import image as kept
from djinn_jupyter.engine.store.values import keep

SHARED: Final = "what the layers of a stopped pass hand on to each other"
STATES: Final = "a recurrent layer"
Made = TypeVar("Made")


class DumpedFrames:
    """Reuses parts of a session's image in its next: frames are immutable, and a history has many; the state of a
    generator is the same where nothing was drawn. Releases what the next image does not contain."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], tuple[object, Any]] = {}  # with each original, whose id stays its own so
        self._now: dict[tuple[str, int], tuple[object, Any]] = {}

    def image(self, frame: Frame) -> kept.FrameImage:
        return self._reused("frame", frame, _frame)

    def entry(self, frame: Frame) -> kept.EntryImage:
        """Return the image of the frame of a pass's entry in the log."""
        return self._reused("entry", frame, _entry)

    def generator(self, generation: Generation) -> Tensor:
        """Return the state of the generator; the same tensor as in the previous image where it is unchanged."""
        state, key = generation.sampler.generator.get_state(), ("generator", id(generation))
        _, known = self._before.get(key, (None, state))
        self._now[key] = generation, known if torch.equal(known, state) else state
        return cast(Tensor, self._now[key][1])

    def _reused(self, kind: str, frame: Frame, make: Callable[[Frame], Made]) -> Made:
        key = kind, id(frame)
        self._now[key] = self._now.get(key) or self._before.get(key) or (frame, make(frame))
        return cast(Made, self._now[key][1])

    def forget_unmet(self) -> None:
        """Release parts that the finished image does not contain."""
        self._before, self._now = self._now, {}


def dump_session(
    session: Session, rows: tuple[kept.GroupRows, ...] | None, frames: DumpedFrames | None = None
) -> kept.SessionImage:
    """Return the image of a session: stopped, idle, or idle at its last committed step where it runs. `frames` are
    those of the previous image.

    Without `rows` the image is light: it also leaves out recurrent states between the stops and everything that
    recomputing the tokens restores. Raises CheckpointRefused where a stop holds a value of an unknown kind.
    """
    frames = frames or DumpedFrames()
    image = _Dump(session, frames, light=rows is None).image(rows)
    frames.forget_unmet()
    return image


def with_values(
    image: kept.SessionImage, away: Callable[[Tensor], bool], value_of: Callable[[Tensor], Tensor]
) -> kept.SessionImage:
    """Return the same image with copies in place of the tensors that are swapped out (`away`)."""
    found: kept.SessionImage = _Copying(away, value_of).copied(image)
    return found


class _Copying:
    """One image being copied: a tensor that occurs twice is copied once. Its tensors are released with it: a function
    that calls itself by a closure would hold them until the collector of cycles runs."""

    def __init__(self, away: Callable[[Tensor], bool], value_of: Callable[[Tensor], Tensor]) -> None:
        self._away, self._value_of = away, value_of
        self._made: dict[int, Tensor] = {}

    def copied(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple):
            return tuple(self.copied(part) for part in value)
        if isinstance(value, dict):
            return {key: self.copied(part) for key, part in value.items()}
        if isinstance(value, msgspec.Struct):
            parts = {name: getattr(value, name) for name in value.__struct_fields__}
            changed = {name: part for name, old in parts.items() if (part := self.copied(old)) is not old}
            return msgspec.structs.replace(value, **changed) if changed else value
        return value

    def _tensor(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._made:
            self._made[id(tensor)] = self._value_of(tensor) if self._away(tensor) else tensor
        return self._made[id(tensor)]


def group_rows(geometry: GroupGeometry, rows: Rows) -> kept.GroupRows:
    return kept.GroupRows(
        layers=tuple(layer.cache_layer for layer in geometry.layers),
        window=geometry.window,
        first=rows.first,
        end=rows.end,
        runs=tuple(kept.RunRows(keys=keys, values=values) for keys, values in rows.runs),
    )


class _Dump:
    """One image in progress: numbers frames and generations in order of appearance."""

    def __init__(self, session: Session, dumped: DumpedFrames, *, light: bool) -> None:
        self.session, self.light = session, light
        self._dumped, self._own_tokens = dumped, tuple(session.tokens)
        self.paused = session.state == "paused"
        self._frames: dict[int, int] = {}
        self._generations: dict[int, int] = {}
        self._frame_images: list[kept.FrameImage] = []
        self._generation_images: list[kept.GenerationImage] = []

    def image(self, rows: tuple[kept.GroupRows, ...] | None) -> kept.SessionImage:
        session = self.session
        frame = self._frame(session.frame) if self.paused and session.frame is not None else None
        generation = None if session.generation is None else self._generation(session.generation)
        history = self._history()
        return kept.SessionImage.of(
            session,
            paused=self.paused,
            tokens=self._own_tokens,
            frames=tuple(self._frame_images),
            lines=tuple(self._generation_images),
            frame=frame,
            line=generation,
            history=history,
            edits=session.edits_in_force,
            edits_made=tuple(session.edits) if self.paused else (),
            breakpoints=tuple(_breakpoint(b) for b in session.breakpoints.values()),
            rules=tuple(kept.RuleImage.of(one, **_taps(one), sizes=one.sizes()) for one in session.rules.values()),
            watches=tuple(_watch(one) for one in session.watches.values()),
            logits=None if session.state == "running" else session.logits_1V,
            journal=_states(session.saved_states) if self.paused else {},
            states=None if self.light else self._live_states(),
            trail=_pass_log(session.pass_log, self._dumped),
            rows=rows,
            places=None,
            lost=session.needs_recompute,
            adapter=None if session.adapter is None else session.adapter.identity,
            shares=session.shares.by_person,
            answered=tuple(session.answered) if self.light else (),
            let_go=session.answered.let_go if self.light else {},
            moving=session.moving.present,
            holder=(session.holder or session.left_by) if self.light else None,
        )

    def _live_states(self) -> kept.StatesImage:
        """Return the states at the committed length; where a pass is stopped, its present states."""
        live = self.session.cache.capture_all()
        return _states(live if self.paused else {**live, **self.session.saved_states})

    def _history(self) -> kept.HistoryImage:
        history = self.session.history
        return kept.HistoryImage.of(
            history,
            stops=tuple(self._stop(stop) for stop in history.written),
            present=history.present - history.unwritten if self.paused and history.present is not None else None,
            dropped=history.dropped + history.unwritten,
        )

    def _stop(self, stop: StopRecord) -> kept.StopImage:
        return kept.StopImage.of(
            stop,
            frame=self._frame(stop.frame),
            line=self._generation(stop.generation),
            tokens=self._tokens(stop.tokens),
            left_as=None if stop.left_as is None else self._frame(stop.left_as),
        )

    def _tokens(self, tokens: tuple[int, ...]) -> kept.TokensImage:
        """Store the tokens by their number where they begin the session's own tokens, as at nearly all stops."""
        shared = len(tokens) if self._own_tokens[: len(tokens)] == tokens else 0
        return kept.TokensImage(shared=shared, rest=tokens[shared:])

    def _frame(self, frame: Frame) -> int:
        if id(frame) not in self._frames:
            self._frames[id(frame)] = len(self._frame_images)
            self._frame_images.append(self._dumped.image(frame))
        return self._frames[id(frame)]

    def _generation(self, generation: Generation) -> int:
        if id(generation) not in self._generations:
            self._generations[id(generation)] = len(self._generation_images)
            self._generation_images.append(
                _generation(generation, self._dumped.generator(generation), light=self.light)
            )
        return self._generations[id(generation)]


def _frame(frame: Frame) -> kept.FrameImage:
    return kept.FrameImage.of(
        frame,
        tap=None if frame.tap is None else kept.TapImage.of(frame.tap),
        inlays=tuple(_override(override) for override in frame.overrides),
        shared=keep(dict(frame.shared), SHARED),
        states=None if frame.states is None else _states(frame.states),
        start_states=None if frame.start_states is None else _states(frame.start_states),
    )


def _override(override: Override) -> kept.OverrideImage:
    changes = (kept.ChangeImage.of(change, size=float(change.size)) for change in override.changes)
    return kept.OverrideImage.of(override, tap=kept.TapImage.of(override.tap), changes=tuple(changes))


def _states(states: Mapping[int, LayerState]) -> kept.StatesImage:
    return {layer: keep(dict(state.fields), STATES) for layer, state in states.items()}


def _generation(generation: Generation, generator: Tensor, *, light: bool) -> kept.GenerationImage:
    return kept.GenerationImage.of(
        generation,
        sampling=generation.sampler.sampling,
        prompt_length=generation.sampler.prompt_length,
        generator=generator,
        eos=tuple(sorted(generation.eos)),
        states={} if light else {length: _states(states) for length, states in generation.states.items()},
        state_lengths=tuple(generation.states),
        drawn=tuple(generation.drawn),
        log_probabilities=tuple(generation.log_probabilities),
    )


def _breakpoint(one: Breakpoint) -> kept.BreakpointImage:
    return kept.BreakpointImage.of(one, tap=_tap(one), when=None if one.condition is None else one.condition.text)


def _watch(one: Watch) -> kept.WatchImage:
    values, positions, runs = (tuple(part) for part in (one.values, one.positions, one.runs))
    return kept.WatchImage.of(one, tap=_tap(one), values=values, positions=positions, runs=runs)


def _taps(rule: Rule) -> dict[str, Any]:
    """Return the first tap of a rule and those after it."""
    first, *more = (
        kept.TapImage(site=s, kind=tap.kind, added=tap.added) for s, tap in zip(rule.sites, rule.taps, strict=True)
    )
    return {"tap": first, "more": tuple(more)}


def _tap(placed: Breakpoint | Watch) -> kept.TapImage:
    """Return the tap with the site in its spelling, which may have a selector."""
    return kept.TapImage(site=placed.site, kind=placed.tap.kind, added=placed.tap.added)


def _pass_log(log: PassLog, dumped: DumpedFrames) -> kept.PassLogImage:
    sets: dict[tuple[int, ...], int] = {}
    held: list[tuple[kept.HeldRule, ...]] = []
    passes: list[kept.PassesImage] = []
    for one in log.passes:
        key = tuple(id(rule) for rule in one.rules)
        if key not in sets:
            sets[key] = len(held)
            held.append(tuple(kept.HeldRule.of(rule, **_taps(rule)) for rule in one.rules))
        passes.append(_passes(one, sets[key], dumped))
    return kept.PassLogImage(rules=tuple(held), passes=tuple(passes), edited=tuple(log.edited))


def _passes(one: Passes, rules: int, dumped: DumpedFrames) -> kept.PassesImage:
    return kept.PassesImage.of(one, rules=rules, entry=None if one.entry is None else dumped.entry(one.entry))


def _entry(entry: Frame) -> kept.EntryImage:
    return kept.EntryImage.of(
        entry,
        tap=None if entry.tap is None else kept.TapImage.of(entry.tap),
        inlays=tuple(_override(override) for override in entry.overrides),
    )
