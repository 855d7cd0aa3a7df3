/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  CircuitsRun,
  EdgesAttributed,
} from './circuits';

import {
  Collected,
  Scored,
} from './datasets';

import {
  Attributed,
} from './direct';

import {
  FeatureRead,
  FeaturesEncoded,
} from './features';

import {
  GraphMade,
} from './graphs';

import {
  HeadRead,
  HeadsRead,
} from './heads';

import {
  Swept,
} from './sweep';

import {
  TextLensRead,
  TextMeasured,
} from './text';

import {
  ScoreExplained,
} from './why';

import {
  Cleared,
  Failed,
} from './base';

import {
  Checked,
  Departed,
  Listening,
  Pong,
  ShuttingDown,
  Welcome,
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
  AdapterAdded,
  Adapters,
  AddedModules,
  ModuleAdded,
} from './modules';

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
  Compared,
  FiguresRead,
  HistoryRead,
  PooledRead,
  Tree,
} from './readings';

import {
  BreakpointSet,
  Edited,
  Finished,
  Logits,
  MetricsRead,
  PassRead,
  Paused,
  Pausing,
  Reached,
  Steered,
} from './running';

import {
  CheckpointSaved,
  Checkpoints,
  Closed,
  Described,
  Detached,
  MoveSettled,
  Opened,
  ProvenanceRead,
  SentAway,
  Sessions,
  Statistics,
} from './sessions';

import {
  Copies,
  Modules,
  Noted,
  Swapped,
  Tokenized,
  WeightRead,
  WeightsMoved,
} from './weights';

export type WireReply =
  | Failed
  | InPieces
  | Welcome
  | Departed
  | Pong
  | ShuttingDown
  | Listening
  | Inspected
  | LensRead
  | Effect
  | Evaluated
  | Cleared
  | Watching
  | WatchRead
  | Described
  | AdapterAdded
  | Adapters
  | ModuleAdded
  | AddedModules
  | People
  | PieceRead
  | Dropped
  | PieceTaken
  | HistoryRead
  | Tree
  | FiguresRead
  | Compared
  | PooledRead
  | Paused
  | Finished
  | Pausing
  | Logits
  | MetricsRead
  | BreakpointSet
  | PassRead
  | Reached
  | Edited
  | Steered
  | Opened
  | Detached
  | Closed
  | Sessions
  | Statistics
  | CheckpointSaved
  | Checkpoints
  | ProvenanceRead
  | SentAway
  | MoveSettled
  | WeightRead
  | Swapped
  | Noted
  | WeightsMoved
  | Copies
  | Modules
  | Tokenized
  | EdgesAttributed
  | CircuitsRun
  | Collected
  | Checked
  | Scored
  | Attributed
  | FeatureRead
  | FeaturesEncoded
  | GraphMade
  | HeadsRead
  | HeadRead
  | Swept
  | TextMeasured
  | TextLensRead
  | ScoreExplained;
