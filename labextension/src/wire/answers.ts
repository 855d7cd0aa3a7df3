/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Attributed,
} from './direct';

import {
  Accepted,
} from './messages';

import {
  Adapters,
} from './adapters';

import {
  AddedModules,
} from './added_modules';

import {
  BreakpointSet,
} from './breakpoints';

import {
  CheckpointSaved,
  Checkpoints,
} from './checkpoints';

import {
  Pong,
  ShuttingDown,
} from './greeting';

import {
  HistoryRead,
  Tree,
} from './history';

import {
  Edited,
  Steered,
} from './interventions';

import {
  Sessions,
  Statistics,
} from './listing';

import {
  Effect,
  Evaluated,
  Inspected,
  LensRead,
} from './looks';

import {
  Modules,
  Tokenized,
} from './model';

import {
  Closed,
  Described,
  Opened,
} from './opening';

import {
  PassRead,
} from './passes';

import {
  PooledRead,
} from './pooling';

import {
  Cleared,
} from './reply_base';

import {
  Logits,
  Paused,
  Pausing,
} from './running';

import {
  Swapped,
  WeightsMoved,
} from './swapping';

import {
  WatchRead,
  Watching,
} from './watches';

import {
  Copies,
} from './weights';

/** What each request is answered with; `Failed` comes as an error. */
export interface Answers {
  readonly RemoveAdapter: Cleared;
  readonly SetAdapter: Described;
  readonly ListAdapters: Adapters;
  readonly RemoveModule: Cleared;
  readonly ListAddedModules: AddedModules;
  readonly SetBreakpoint: BreakpointSet;
  readonly EnableBreakpoint: BreakpointSet;
  readonly ClearBreakpoints: Cleared;
  readonly RestoreCheckpoint: Opened;
  readonly DropCheckpoint: Cleared;
  readonly SaveCheckpoint: CheckpointSaved;
  readonly ListCheckpoints: Checkpoints;
  readonly Ping: Pong;
  readonly Shutdown: ShuttingDown;
  readonly ReadHistory: HistoryRead;
  readonly ReadTree: Tree;
  readonly RevertEdits: Paused;
  readonly EnableEdit: Paused;
  readonly Unsteer: Cleared;
  readonly ApplyEdit: Edited;
  readonly EnableRule: Steered;
  readonly Steer: Steered;
  readonly ListSessions: Sessions;
  readonly ReadStatistics: Statistics;
  readonly Inspect: Inspected;
  readonly Lens: LensRead;
  readonly MeasureEffect: Effect;
  readonly Evaluate: Evaluated;
  readonly ListModules: Modules;
  readonly Tokenize: Tokenized;
  readonly Detokenize: Tokenized;
  readonly Open: Opened;
  readonly Describe: Described;
  readonly AcceptRecomputed: Described;
  readonly Close: Closed;
  readonly Fork: Opened;
  readonly ReadPass: PassRead;
  readonly ReadPooled: PooledRead;
  readonly Run: Accepted;
  readonly Resume: Accepted;
  readonly Step: Accepted;
  readonly Back: Accepted;
  readonly Pause: Pausing;
  readonly ReadStop: Paused;
  readonly ReadLogits: Logits;
  readonly SwapOut: Swapped;
  readonly SwapIn: Swapped;
  readonly Rest: Described;
  readonly Sleep: WeightsMoved;
  readonly Wake: WeightsMoved;
  readonly ReadCopies: Copies;
  readonly Unwatch: Cleared;
  readonly Watch: Watching;
  readonly ReadWatch: WatchRead;
  readonly Attribute: Attributed;
}
