/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  AdapterAdded,
  Adapters,
} from './adapters';

import {
  AddedModules,
  ModuleAdded,
} from './added_modules';

import {
  Attributed,
} from './attribution';

import {
  Checked,
} from './checking';

import {
  CheckpointSaved,
  Checkpoints,
} from './checkpoints';

import {
  Collected,
} from './collecting';

import {
  CircuitsRun,
  EdgesAttributed,
} from './edges';

import {
  Failed,
} from './failed';

import {
  Compared,
  FiguresRead,
} from './figures';

import {
  GraphMade,
} from './graphs';

import {
  Departed,
  Pong,
  Welcome,
} from './greeting';

import {
  HeadsRead,
} from './heads';

import {
  Listening,
} from './listening';

import {
  Sessions,
} from './listing';

import {
  Effect,
  Inspected,
  LensRead,
} from './looks';

import {
  MoveSettled,
  ProvenanceRead,
  SentAway,
} from './moving';

import {
  Closed,
  Described,
  Detached,
  Opened,
} from './opening';

import {
  PassRead,
  Reached,
} from './passes';

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
  PooledRead,
} from './pooling';

import {
  BreakpointSet,
  Cleared,
  Edited,
  Evaluated,
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

import {
  Scored,
} from './scoring';

import {
  Swapped,
  WeightsMoved,
} from './swapping';

import {
  MetricsRead,
  Swept,
} from './sweeps';

import {
  WatchRead,
  Watching,
} from './watches';

import {
  Copies,
  WeightRead,
} from './weights';

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
