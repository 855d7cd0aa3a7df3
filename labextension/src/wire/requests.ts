/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ListAdapters,
  RemoveAdapter,
  SetAdapter,
} from './adapters';

import {
  ListAddedModules,
  RemoveModule,
} from './added_modules';

import {
  DropCheckpoint,
  ListCheckpoints,
  RestoreCheckpoint,
  SaveCheckpoint,
} from './checkpoints';

import {
  Ping,
} from './greeting';

import {
  ApplyEdit,
  EnableEdit,
  EnableRule,
  MeasureEffect,
  RevertEdits,
  Steer,
  Unsteer,
} from './interventions';

import {
  ListSessions,
} from './listing';

import {
  Sampling,
  StopIdentity,
} from './nouns';

import {
  Close,
  Describe,
  Fork,
  Open,
} from './opening';

import {
  Inspect,
  Lens,
  ReadPass,
} from './passes';

import {
  ReadPooled,
} from './pooling';

import {
  ReadCopies,
  Rest,
  Sleep,
  SwapIn,
  SwapOut,
  Wake,
} from './swapping';

import {
  ReadWatch,
  Unwatch,
  Watch,
} from './watches';

export interface ListModules {
  readonly request: 'ListModules';
}

export interface Tokenize {
  readonly request: 'Tokenize';
  readonly text: string;
  readonly chat?: boolean;
}

export interface Detokenize {
  readonly request: 'Detokenize';
  readonly tokens: readonly number[];
}

export interface ReadStatistics {
  readonly request: 'ReadStatistics';
}

/**
 * Refused while other holders have sessions, or with `forget` while sessions belong to other notebooks, unless
 * `force`. The sessions come back with the next engine of this
 * model, where a journal is kept, unless `forget`.
 */
export interface Shutdown {
  readonly request: 'Shutdown';
  readonly force?: boolean;
  readonly forget?: boolean;
}

/**
 * Run a prompt (text or token ids) until a stop or the end.
 *
 * A fresh line of tokens, unless `extend`: then the prompt (may be empty) is appended to the present line.
 * A line that was run for no new token is extended by none: its next token is drawn from the logits that it ended in.
 * `free` ignores breakpoints. `fast` shares passes of generated tokens with other such runs; last bits may differ.
 */
export interface Run {
  readonly request: 'Run';
  readonly session: string;
  readonly text?: string | null;
  readonly tokens?: readonly number[] | null;
  readonly max_new_tokens?: number;
  readonly sampling?: Sampling;
  readonly stop?: readonly string[];
  readonly ignore_eos?: boolean;
  readonly chat?: boolean;
  readonly extend?: boolean;
  readonly free?: boolean;
  readonly mode?: 'fast' | 'exact';
}

export interface Resume {
  readonly request: 'Resume';
  readonly session: string;
  readonly free?: boolean;
  readonly mode?: 'fast' | 'exact' | null;
  readonly stop?: StopIdentity | null;
}

/**
 * By layers, by tokens (to the same site of a later pass), or by points: to the next point of the layer that the
 * pass stands before or inside, at its end to the layer's output.
 */
export interface Step {
  readonly request: 'Step';
  readonly session: string;
  readonly count?: number;
  readonly by?: 'layer' | 'token' | 'point';
  readonly stop?: StopIdentity | null;
}

/**
 * Have a run stop at its next layer boundary; have edges that are patched, an attribution graph or a reading of
 * heads reply with the parts that are done.
 */
export interface Pause {
  readonly request: 'Pause';
  readonly session: string;
}

export interface Back {
  readonly request: 'Back';
  readonly session: string;
  readonly count?: number;
  readonly by?: 'stop' | 'layer' | 'token';
  readonly stop?: StopIdentity | null;
}

export interface SetBreakpoint {
  readonly request: 'SetBreakpoint';
  readonly session: string;
  readonly site: string;
  readonly when?: string | null;
  readonly once?: boolean;
}

export interface EnableBreakpoint {
  readonly request: 'EnableBreakpoint';
  readonly session: string;
  readonly number: number;
  readonly enabled: boolean;
}

/** `sites` None clears all; otherwise spellings or numbers. */
export interface ClearBreakpoints {
  readonly request: 'ClearBreakpoints';
  readonly session: string;
  readonly sites?: readonly string[] | null;
}

/**
 * Direct logit attribution: what the outputs of attention and MLP of each layer that has run add to the logit of a
 * token, by text or number, or of two to their difference. `heads` parts attention into its heads, `neurons` each MLP
 * into the inputs of its last map. `position` is absolute, negative from the end of the pass. `ahead` finishes the
 * pass on the side and adds the layers after the stop.
 */
export interface Attribute {
  readonly request: 'Attribute';
  readonly session: string;
  readonly tokens: readonly (number | string)[];
  readonly heads?: boolean;
  readonly neurons?: boolean;
  readonly position?: number;
  readonly ahead?: boolean;
}

/**
 * Evaluate an expression of the condition language at a position of the stopped pass, as a breakpoint there would
 * read it. `site` None is the stopped one; `position` is absolute, negative from the end of the pass.
 */
export interface Evaluate {
  readonly request: 'Evaluate';
  readonly session: string;
  readonly expression: string;
  readonly site?: string | null;
  readonly position?: number;
}

/** The present stop once more, as it was reported. */
export interface ReadStop {
  readonly request: 'ReadStop';
  readonly session: string;
}

/** fp32 logits of the last position of the last finished pass. */
export interface ReadLogits {
  readonly request: 'ReadLogits';
  readonly session: string;
}

export interface ReadHistory {
  readonly request: 'ReadHistory';
  readonly session: string;
}

/** The stops of all sessions, and which forks they share them with. */
export interface ReadTree {
  readonly request: 'ReadTree';
}

/** The user has seen that the session was recomputed after a recovery; from now on it counts as exact again. */
export interface AcceptRecomputed {
  readonly request: 'AcceptRecomputed';
  readonly session: string;
}

export type WireRequest =
  | Ping
  | ListModules
  | ListAddedModules
  | RemoveModule
  | ListAdapters
  | RemoveAdapter
  | SetAdapter
  | Tokenize
  | Detokenize
  | ReadStatistics
  | ListSessions
  | Shutdown
  | Open
  | Describe
  | Close
  | Fork
  | Run
  | Resume
  | Step
  | Pause
  | Back
  | SetBreakpoint
  | EnableBreakpoint
  | ClearBreakpoints
  | ApplyEdit
  | RevertEdits
  | EnableEdit
  | MeasureEffect
  | Steer
  | Unsteer
  | EnableRule
  | Inspect
  | ReadPooled
  | ReadPass
  | Lens
  | Attribute
  | Evaluate
  | Watch
  | Unwatch
  | ReadWatch
  | ReadStop
  | ReadLogits
  | ReadHistory
  | ReadTree
  | SwapOut
  | SwapIn
  | Rest
  | Sleep
  | Wake
  | ReadCopies
  | SaveCheckpoint
  | RestoreCheckpoint
  | ListCheckpoints
  | DropCheckpoint
  | AcceptRecomputed;
