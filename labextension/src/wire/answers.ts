/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Adapters,
} from './adapters';

import {
  AddedModules,
} from './added_modules';

import {
  Attributed,
} from './attribution';

import {
  CheckpointSaved,
  Checkpoints,
} from './checkpoints';

import {
  Pong,
} from './greeting';

import {
  Sessions,
} from './listing';

import {
  Effect,
  Inspected,
  LensRead,
} from './looks';

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
  BreakpointSet,
  Cleared,
  Edited,
  Evaluated,
  HistoryRead,
  Logits,
  Modules,
  Paused,
  Pausing,
  ShuttingDown,
  Statistics,
  Steered,
  Tokenized,
  Tree,
} from './replies';

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

import {
  Accepted,
} from './messages';

/** What each request is answered with; `Failed` comes as an error. */
export interface Answers {
  readonly Ping: Pong;
  readonly ListModules: Modules;
  readonly ListAddedModules: AddedModules;
  readonly RemoveModule: Cleared;
  readonly ListAdapters: Adapters;
  readonly RemoveAdapter: Cleared;
  readonly SetAdapter: Described;
  readonly Tokenize: Tokenized;
  readonly Detokenize: Tokenized;
  readonly ReadStatistics: Statistics;
  readonly ListSessions: Sessions;
  readonly Shutdown: ShuttingDown;
  readonly Open: Opened;
  readonly Describe: Described;
  readonly Close: Closed;
  readonly Fork: Opened;
  readonly Run: Accepted;
  readonly Resume: Accepted;
  readonly Step: Accepted;
  readonly Pause: Pausing;
  readonly Back: Accepted;
  readonly SetBreakpoint: BreakpointSet;
  readonly EnableBreakpoint: BreakpointSet;
  readonly ClearBreakpoints: Cleared;
  readonly ApplyEdit: Edited;
  readonly RevertEdits: Paused;
  readonly EnableEdit: Paused;
  readonly MeasureEffect: Effect;
  readonly ReadPass: PassRead;
  readonly Steer: Steered;
  readonly Unsteer: Cleared;
  readonly EnableRule: Steered;
  readonly Inspect: Inspected;
  readonly ReadPooled: PooledRead;
  readonly Lens: LensRead;
  readonly Attribute: Attributed;
  readonly Watch: Watching;
  readonly Unwatch: Cleared;
  readonly ReadWatch: WatchRead;
  readonly ReadStop: Paused;
  readonly ReadLogits: Logits;
  readonly ReadHistory: HistoryRead;
  readonly ReadTree: Tree;
  readonly SwapOut: Swapped;
  readonly SwapIn: Swapped;
  readonly Rest: Described;
  readonly Sleep: WeightsMoved;
  readonly Wake: WeightsMoved;
  readonly ReadCopies: Copies;
  readonly SaveCheckpoint: CheckpointSaved;
  readonly RestoreCheckpoint: Opened;
  readonly ListCheckpoints: Checkpoints;
  readonly DropCheckpoint: Cleared;
  readonly Evaluate: Evaluated;
  readonly AcceptRecomputed: Described;
}
