/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Attribute,
} from './direct';

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
  ClearBreakpoints,
  EnableBreakpoint,
  SetBreakpoint,
} from './breakpoints';

import {
  DropCheckpoint,
  ListCheckpoints,
  RestoreCheckpoint,
  SaveCheckpoint,
} from './checkpoints';

import {
  Ping,
  Shutdown,
} from './greeting';

import {
  ReadHistory,
  ReadTree,
} from './history';

import {
  ApplyEdit,
  EnableEdit,
  EnableRule,
  RevertEdits,
  Steer,
  Unsteer,
} from './interventions';

import {
  ListSessions,
  ReadStatistics,
} from './listing';

import {
  Evaluate,
  Inspect,
  Lens,
  MeasureEffect,
} from './looks';

import {
  Detokenize,
  ListModules,
  Tokenize,
} from './model';

import {
  AcceptRecomputed,
  Close,
  Describe,
  Fork,
  Open,
} from './opening';

import {
  ReadPass,
} from './passes';

import {
  ReadPooled,
} from './pooling';

import {
  Back,
  Pause,
  ReadLogits,
  ReadStop,
  Resume,
  Run,
  Step,
} from './running';

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

export type WireRequest =
  | RemoveAdapter
  | SetAdapter
  | ListAdapters
  | RemoveModule
  | ListAddedModules
  | SetBreakpoint
  | EnableBreakpoint
  | ClearBreakpoints
  | RestoreCheckpoint
  | DropCheckpoint
  | SaveCheckpoint
  | ListCheckpoints
  | Ping
  | Shutdown
  | ReadHistory
  | ReadTree
  | RevertEdits
  | EnableEdit
  | Unsteer
  | ApplyEdit
  | EnableRule
  | Steer
  | ListSessions
  | ReadStatistics
  | Inspect
  | Lens
  | MeasureEffect
  | Evaluate
  | ListModules
  | Tokenize
  | Detokenize
  | Open
  | Describe
  | AcceptRecomputed
  | Close
  | Fork
  | ReadPass
  | ReadPooled
  | Run
  | Resume
  | Step
  | Back
  | Pause
  | ReadStop
  | ReadLogits
  | SwapOut
  | SwapIn
  | Rest
  | Sleep
  | Wake
  | ReadCopies
  | Unwatch
  | Watch
  | ReadWatch
  | Attribute;
