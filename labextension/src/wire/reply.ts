/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  CircuitsRun,
  EdgesAttributed,
} from './circuits';

import {
  Collected,
} from './collecting';

import {
  Scored,
} from './scoring';

import {
  Attributed,
} from './direct';

import {
  GraphMade,
} from './graphs';

import {
  HeadsRead,
} from './heads';

import {
  Swept,
} from './sweep';

import {
  AdapterAdded,
  Adapters,
} from './adapters';

import {
  AddedModules,
  ModuleAdded,
} from './added_modules';

import {
  BreakpointSet,
} from './breakpoints';

import {
  Checked,
} from './checking';

import {
  CheckpointSaved,
  Checkpoints,
} from './checkpoints';

import {
  Failed,
} from './failed';

import {
  Compared,
  FiguresRead,
} from './figures';

import {
  Departed,
  Pong,
  ShuttingDown,
  Welcome,
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
  Listening,
} from './listening';

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
  Cleared,
} from './reply_base';

import {
  Finished,
  Logits,
  MetricsRead,
  Paused,
  Pausing,
} from './running';

import {
  Noted,
  Swapped,
  WeightsMoved,
} from './swapping';

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
  | InPieces
  | Cleared
  | Described
  | AdapterAdded
  | Adapters
  | ModuleAdded
  | AddedModules
  | BreakpointSet
  | Opened
  | CheckpointSaved
  | Checkpoints
  | FiguresRead
  | Compared
  | Welcome
  | Departed
  | Pong
  | ShuttingDown
  | HistoryRead
  | Tree
  | Paused
  | Edited
  | Steered
  | Listening
  | Sessions
  | Statistics
  | Inspected
  | LensRead
  | Effect
  | Evaluated
  | Modules
  | Tokenized
  | ProvenanceRead
  | SentAway
  | MoveSettled
  | Detached
  | Closed
  | PassRead
  | Reached
  | Finished
  | People
  | PieceRead
  | Dropped
  | PieceTaken
  | PooledRead
  | Pausing
  | Logits
  | MetricsRead
  | Swapped
  | Noted
  | WeightsMoved
  | Copies
  | Watching
  | WatchRead
  | WeightRead
  | HeadsRead
  | Swept
  | Checked
  | Attributed
  | EdgesAttributed
  | CircuitsRun
  | GraphMade
  | Collected
  | Scored;
