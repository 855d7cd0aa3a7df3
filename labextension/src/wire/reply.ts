/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  People,
} from './people';

import {
  Dropped,
  InPieces,
  PieceRead,
  PieceTaken,
} from './pieces';

import {
  Swapped,
  WeightsMoved,
} from './swapping';

import {
  Closed,
  Described,
  Detached,
  Opened,
} from './opening';

import {
  Departed,
  Pong,
  Welcome,
} from './greeting';

import {
  Listening,
} from './listening';

import {
  Sessions,
} from './listing';

import {
  WatchRead,
  Watching,
} from './watches';

import {
  Attributed,
} from './attribution';

import {
  Effect,
  Inspected,
  LensRead,
} from './looks';

import {
  CheckpointSaved,
  Checkpoints,
} from './checkpoints';

import {
  MetricsRead,
  Swept,
} from './sweeps';

import {
  CircuitsRun,
  EdgesAttributed,
} from './edges';

import {
  GraphMade,
} from './graphs';

import {
  AdapterAdded,
  Adapters,
} from './adapters';

import {
  AddedModules,
  ModuleAdded,
} from './added_modules';

import {
  Copies,
  WeightRead,
} from './weights';

import {
  HeadsRead,
} from './heads';

import {
  Scored,
} from './scoring';

import {
  MoveSettled,
  ProvenanceRead,
  SentAway,
} from './moving';

import {
  PassRead,
  Reached,
} from './passes';

import {
  PooledRead,
} from './pooling';

import {
  Compared,
  FiguresRead,
} from './figures';

import {
  Checked,
} from './checking';

import {
  Collected,
} from './collecting';

import {
  BreakpointSet,
  Cleared,
  Edited,
  Evaluated,
  Failed,
  Finished,
  HistoryRead,
  Logits,
  Modules,
  Noted,
  Paused,
  Pausing,
  ShuttingDown,
  Statistics,
  Steered,
  Tokenized,
  Tree,
} from './replies';

export type WireReply =
  | Failed
  | Welcome
  | Departed
  | Pong
  | Listening
  | Modules
  | ModuleAdded
  | AddedModules
  | AdapterAdded
  | Adapters
  | WeightRead
  | Tokenized
  | Statistics
  | Sessions
  | People
  | ShuttingDown
  | Opened
  | Described
  | Detached
  | Closed
  | Pausing
  | Paused
  | Finished
  | BreakpointSet
  | Cleared
  | Edited
  | Effect
  | Steered
  | Inspected
  | Reached
  | PooledRead
  | FiguresRead
  | Compared
  | PassRead
  | LensRead
  | Attributed
  | Swept
  | EdgesAttributed
  | GraphMade
  | CircuitsRun
  | MetricsRead
  | Collected
  | Checked
  | Scored
  | HeadsRead
  | Evaluated
  | Watching
  | WatchRead
  | Logits
  | HistoryRead
  | Tree
  | Swapped
  | WeightsMoved
  | Copies
  | CheckpointSaved
  | Checkpoints
  | ProvenanceRead
  | SentAway
  | MoveSettled
  | Noted
  | InPieces
  | PieceRead
  | Dropped
  | PieceTaken;
