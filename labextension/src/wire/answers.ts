/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Attributed,
} from './direct';

import {
  Accepted,
} from './messages';

import {
  Cleared,
} from './base';

import {
  Pong,
  ShuttingDown,
} from './greeting';

import {
  Effect,
  Evaluated,
  Inspected,
  LensRead,
  WatchRead,
  Watching,
} from './looks';

import {
  Adapters,
  AddedModules,
} from './modules';

import {
  HistoryRead,
  PooledRead,
  Tree,
} from './readings';

import {
  BreakpointSet,
  Edited,
  Logits,
  PassRead,
  Paused,
  Pausing,
  Steered,
} from './running';

import {
  CheckpointSaved,
  Checkpoints,
  Closed,
  Described,
  Opened,
  Sessions,
  Statistics,
} from './sessions';

import {
  Copies,
  Modules,
  Swapped,
  Tokenized,
  WeightsMoved,
} from './weights';

/** What each request is answered with; `Failed` comes as an error. */
export interface Answers {
  readonly Ping: Pong;
  readonly Shutdown: ShuttingDown;
  readonly Inspect: Inspected;
  readonly Lens: LensRead;
  readonly MeasureEffect: Effect;
  readonly Evaluate: Evaluated;
  readonly Unwatch: Cleared;
  readonly Watch: Watching;
  readonly ReadWatch: WatchRead;
  readonly RemoveAdapter: Cleared;
  readonly SetAdapter: Described;
  readonly ListAdapters: Adapters;
  readonly RemoveModule: Cleared;
  readonly ListAddedModules: AddedModules;
  readonly ReadHistory: HistoryRead;
  readonly ReadTree: Tree;
  readonly ReadPooled: PooledRead;
  readonly Run: Accepted;
  readonly Resume: Accepted;
  readonly Step: Accepted;
  readonly Back: Accepted;
  readonly Pause: Pausing;
  readonly ReadStop: Paused;
  readonly ReadLogits: Logits;
  readonly SetBreakpoint: BreakpointSet;
  readonly EnableBreakpoint: BreakpointSet;
  readonly ClearBreakpoints: Cleared;
  readonly ReadPass: PassRead;
  readonly RevertEdits: Paused;
  readonly EnableEdit: Paused;
  readonly Unsteer: Cleared;
  readonly ApplyEdit: Edited;
  readonly EnableRule: Steered;
  readonly Steer: Steered;
  readonly Open: Opened;
  readonly Describe: Described;
  readonly AcceptRecomputed: Described;
  readonly Close: Closed;
  readonly Fork: Opened;
  readonly ListSessions: Sessions;
  readonly ReadStatistics: Statistics;
  readonly RestoreCheckpoint: Opened;
  readonly DropCheckpoint: Cleared;
  readonly SaveCheckpoint: CheckpointSaved;
  readonly ListCheckpoints: Checkpoints;
  readonly SwapOut: Swapped;
  readonly SwapIn: Swapped;
  readonly Rest: Described;
  readonly Sleep: WeightsMoved;
  readonly Wake: WeightsMoved;
  readonly ReadCopies: Copies;
  readonly ListModules: Modules;
  readonly Tokenize: Tokenized;
  readonly Detokenize: Tokenized;
  readonly Attribute: Attributed;
}
