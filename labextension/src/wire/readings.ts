/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Origin,
  StopDescription,
  StopIdentity,
  TopToken,
} from './nouns';

export type Applies = 'applied' | 'ahead' | 'next pass' | 'other positions' | 'other passes' | 'condition' | 'refused' | 'not so far' | 'off';

/**
 * The change of a value by an edit (`rule` is None) or a steering rule, in words. `relative_size` is
 * |after - before| / |before| of the part it touched; None where that part was zero, or where it was not measured.
 */
export interface Change {
  readonly what: string;
  readonly rule: number | null;
  readonly relative_size: Float | null;
}

/**
 * A value of the stopped pass that differs from the model's own, with its causes in order. `changes` is empty in a
 * session in which they were not recorded.
 */
export interface Override {
  readonly site: string;
  readonly changes: readonly Change[];
}

/**
 * A steering rule of the session. `applies`: whether it was `applied` in the stopped pass, lies `ahead` of the
 * stop, was set after the pass had gone by (`next pass`), names `other positions` or `other passes` (of the prompt, of
 * new tokens), has a `condition` that was nowhere true, was `refused` by a value that it does not fit (`trouble` has
 * the reason), was `not so far` reached within the layer of the stop, or is `off`. `relative_size` is its size in the
 * stopped pass, at its first site. A rule that is not `enabled` was `applied` where it was turned off after the pass
 * had gone by.
 */
export interface RuleAtStop {
  readonly number: number;
  readonly site: string;
  readonly what: string;
  readonly applies: 'applied' | 'ahead' | 'next pass' | 'other positions' | 'other passes' | 'condition' | 'refused' | 'not so far' | 'off';
  readonly relative_size: Float | null;
  readonly enabled: boolean;
  readonly trouble: string | null;
}

/**
 * An edit made at the stop itself; one that is not `enabled` has no part in the value. Its number counts the edits
 * of the stop from 1. `relative_size` is |after - before| / |before| of the changed part when it was last applied;
 * None where that part was zero.
 */
export interface EditAtStop {
  readonly number: number;
  readonly site: string;
  readonly what: string;
  readonly relative_size: Float | null;
  readonly enabled: boolean;
}

/**
 * Positions [start, end) that were fed under rules or with edits: their keys and values, and the tokens sampled
 * after them, are not the model's own.
 */
export interface EarlierPasses {
  readonly start: number;
  readonly end: number;
  readonly changes: readonly string[];
}

/**
 * All differences of a stop from the unmodified model, and the edits and rules that are off. `adapter` is the
 * session's adapter.
 */
export interface Influences {
  readonly rules: readonly RuleAtStop[];
  readonly overrides: readonly Override[];
  readonly earlier: readonly EarlierPasses[];
  readonly edits: readonly EditAtStop[];
  readonly adapter: string | null;
}

/**
 * The stops of one session, oldest first. `present` is the index of the present one, None while it runs or after it
 * finished; `state` says which. Stops shared with another session have the same numbers there. `dropped` older ones
 * are no longer kept, or not sent: a tree has some ten thousand. `tokens` and `text`: the length of its token
 * sequence, and its last tokens as text.
 */
export interface Branch {
  readonly session: string;
  readonly state: 'idle' | 'running' | 'paused' | 'closed';
  readonly stops: readonly StopDescription[];
  readonly present: number | null;
  readonly tokens: number;
  readonly text: string;
  readonly forked_from: Origin | null;
  readonly stop: StopIdentity | null;
  readonly dropped: number;
}

/** The part of a logit (or of a difference of two) that one module's output, or one head of it, adds. */
export interface Contribution {
  readonly point: string;
  readonly layer: number;
  readonly head: number | null;
  readonly value: Float;
}

/**
 * The part of a score that one earlier output adds at the query's or the key's position: that of a `point` of a
 * `layer` (None for the embeddings), of one head or feature where `unit` is given.
 */
export interface ScorePart {
  readonly point: string;
  readonly layer: number | null;
  readonly unit: number | null;
  readonly value: Float;
}

/**
 * A score as a sum over what one of its two positions holds, with the other one fixed. `parts`, the `constant` (the
 * biases of norm and map) and the `rest` (rules, rounding) sum to it.
 */
export interface ScoreSide {
  readonly parts: readonly ScorePart[];
  readonly constant: Float;
  readonly rest: Float;
}

/** The parts that the neurons of one layer's MLP add, float64 [neurons]: each through the MLP's last map. */
export interface NeuronParts {
  readonly layer: number;
  readonly values: ArrayJson;
}

/** One token of the next-token distribution without (`before`) and with (`after`) the edits of the stop. */
export interface TokenShift {
  readonly token: number;
  readonly text: string;
  readonly probability_before: Float;
  readonly probability_after: Float;
  readonly logit_before: Float;
  readonly logit_after: Float;
}

/**
 * The next-token distribution without and with the edits of the present stop. `kl` in nats, KL(with || without).
 * `shifts` are the tokens of either head, the most probable with the edits first; `chosen` the requested ones.
 */
export interface EffectReading {
  readonly before: readonly TopToken[];
  readonly after: readonly TopToken[];
  readonly kl: Float;
  readonly top1_changed: boolean;
  readonly logit_difference_norm: Float;
  readonly shifts: readonly TokenShift[];
  readonly chosen: readonly TokenShift[];
}

export interface HistoryRead {
  readonly reply: 'History';
  readonly stops: readonly StopDescription[];
  readonly present: number | null;
  readonly not_kept: string | null;
}

/** One branch for each session, in the order of opening: a fork after its parent, if that still exists. */
export interface Tree {
  readonly reply: 'Tree';
  readonly branches: readonly Branch[];
  readonly not_kept: string | null;
}

export interface ReadHistory {
  readonly request: 'ReadHistory';
  readonly session: string;
}

/** The stops of all sessions, and the forks that share them. */
export interface ReadTree {
  readonly request: 'ReadTree';
}

/**
 * Mean, standard deviation (population), lowest, highest and L2 norm of numbers, computed in float64. Each is NaN
 * where a number is NaN, and follows the arithmetic where one is infinite.
 */
export interface Figures {
  readonly mean: Float;
  readonly std: Float;
  readonly lowest: Float;
  readonly highest: Float;
  readonly norm: Float;
}

/**
 * `all` are the figures of the value, `each` those of its positions: float64 [positions, 5], in the order of
 * `Figures`. The other fields are as in Snapshot, without the value, whose shape is `shape`.
 */
export interface FiguresRead {
  readonly reply: 'FiguresRead';
  readonly stop: StopIdentity;
  readonly site: string;
  readonly shape: readonly number[];
  readonly axes: string;
  readonly dtype: string;
  readonly positions: readonly number[];
  readonly exactness: 'exact' | 'recomputed' | 'fast' | 're-run from the committed cache' | 'run ahead' | 'recomputed from q and k';
  readonly all: Figures;
  readonly each: ArrayJson | null;
  readonly not_kept: string | null;
}

/**
 * The largest |b - a| of finite numbers, in float64, and its first place: the position of the pass and the indices
 * of all axes after it, a selected head or feature by its own number. `a` and `b` are the numbers there.
 */
export interface LargestDifference {
  readonly difference: Float;
  readonly position: number;
  readonly index: readonly number[];
  readonly a: Float;
  readonly b: Float;
}

/**
 * The distance of two values of one shape at the positions that both passes have, in float64 and over all of their
 * numbers. `differing` counts pairs of different numbers (NaN equals NaN), `not_finite` those of them with a number
 * that is not finite; `largest` is the largest of the others, None where no finite pair differs.
 *
 * `distances` are |b - a| / |a| at the last of `positions`, as many as requested, without pairs that are not finite;
 * None where |a| is zero.
 */
export interface Apart {
  readonly positions: readonly number[];
  readonly numbers: number;
  readonly differing: number;
  readonly not_finite: number;
  readonly largest: LargestDifference | null;
  readonly distances: readonly (Float | null)[];
}

/** `apart` is None where the passes share no position, or where their values have different shapes at one. */
export interface Compared {
  readonly reply: 'Compared';
  readonly site: string;
  readonly stops: readonly StopIdentity[];
  readonly shapes: readonly (readonly number[])[];
  readonly dtypes: readonly string[];
  readonly apart: Apart | null;
  readonly not_kept: string | null;
}

/**
 * Heads of a value, each pooled alone, for pictures side by side. `cells` are [heads, rows, columns], rounded and
 * exact as in `Pooled`; `heads` are the numbers of its heads, the first ones.
 */
export interface PooledHeads {
  readonly cells: ArrayJson;
  readonly heads: readonly number[];
  readonly rows_per_cell: number;
  readonly columns_per_cell: number;
}

/**
 * The largest entries of each head at the last positions, the largest first and of equal ones the first: `places`
 * [positions, heads, entries] are their indices in the head, `values` the entries, exact. There are as many as
 * requested, or as a head has entries.
 */
export interface Strongest {
  readonly places: ArrayJson;
  readonly values: ArrayJson;
}

/**
 * A site's value in the stopped pass for drawing, not for computing; `Snapshot` has the value.
 *
 * A cell of `cells`, [rows, columns], is the number of largest magnitude in a block of `rows_per_cell` positions by
 * `columns_per_cell` features, with heads and features flattened. Of a number and its opposite the positive one is
 * taken; infinities count; NaN only where there is nothing else. `alone` has a row of columns for each position
 * requested in `alone`. Pooled cells are rounded to bfloat16 where `dtype` has more than 16 bits: a colour shows no
 * more. Where each number has a cell of its own, the cells are the numbers. `last` are the numbers of the last
 * positions, as many as requested, in their own dtype and shape: [positions, ...]. `heads` and `strongest` are for a
 * value with heads, where requested.
 *
 * `shape`, `dtype`, `positions`, `lowest`, `highest` (of its finite numbers, None where there are none) and
 * `not_finite`, a count, describe the value itself, exactly; with `mean_of_heads` the last three and the cells
 * describe the mean over its heads. `stop` is its source.
 */
export interface Pooled {
  readonly site: string;
  readonly cells: ArrayJson;
  readonly rows_per_cell: number;
  readonly columns_per_cell: number;
  readonly alone: ArrayJson | null;
  readonly last: ArrayJson | null;
  readonly mean_of_heads: boolean;
  readonly axes: string;
  readonly shape: readonly number[];
  readonly positions: readonly number[];
  readonly dtype: string;
  readonly lowest: Float | null;
  readonly highest: Float | null;
  readonly not_finite: number;
  readonly stop: StopIdentity;
  readonly exactness: 'exact' | 'recomputed' | 'fast' | 're-run from the committed cache' | 'run ahead' | 'recomputed from q and k';
  readonly heads: PooledHeads | null;
  readonly strongest: Strongest | null;
}

export interface PooledRead {
  readonly reply: 'PooledRead';
  readonly pooled: Pooled;
  readonly not_kept: string | null;
}

/**
 * A site's value in the stopped pass, pooled to at most `rows` by `columns` cells. `site`, `positions` and `ahead`
 * are as in Inspect. The positions in `alone` are also pooled across features only, each in its own row; the `last`
 * positions are also sent whole. `mean_of_heads` pools the mean of the heads of a value that has them.
 *
 * `heads` also pools each of the first `most_heads` heads alone, to so many cells altogether; a value without heads
 * has none. `strongest` sends so many entries of each head at the last `strongest_at` positions. Cells have the
 * value's own dtype unless `rounded`, for views that write numbers.
 */
export interface ReadPooled {
  readonly request: 'ReadPooled';
  readonly session: string;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly ahead?: boolean;
  readonly rows?: number;
  readonly columns?: number;
  readonly alone?: readonly number[] | null;
  readonly last?: number;
  readonly mean_of_heads?: boolean;
  readonly heads?: number;
  readonly most_heads?: number;
  readonly strongest?: number;
  readonly strongest_at?: number;
  readonly rounded?: boolean;
}
