/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Attribute,
} from './direct';

import {
  Ping,
  Shutdown,
} from './greeting';

import {
  Evaluate,
  Inspect,
  Lens,
  MeasureEffect,
  ReadWatch,
  Unwatch,
  Watch,
} from './looks';

import {
  ListAdapters,
  ListAddedModules,
  RemoveAdapter,
  RemoveModule,
  SetAdapter,
} from './modules';

import {
  ReadHistory,
  ReadPooled,
  ReadTree,
} from './readings';

import {
  ApplyEdit,
  Back,
  ClearBreakpoints,
  EnableBreakpoint,
  EnableEdit,
  EnableRule,
  Pause,
  ReadLogits,
  ReadPass,
  ReadStop,
  Resume,
  RevertEdits,
  Run,
  SetBreakpoint,
  Steer,
  Step,
  Unsteer,
} from './running';

import {
  AcceptRecomputed,
  Close,
  Describe,
  DropCheckpoint,
  Fork,
  ListCheckpoints,
  ListSessions,
  Open,
  ReadStatistics,
  RestoreCheckpoint,
  SaveCheckpoint,
} from './sessions';

import {
  Detokenize,
  ListModules,
  ReadCopies,
  Rest,
  Sleep,
  SwapIn,
  SwapOut,
  Tokenize,
  Wake,
} from './weights';

export type WireRequest =
  | Ping
  | Shutdown
  | Inspect
  | Lens
  | MeasureEffect
  | Evaluate
  | Unwatch
  | Watch
  | ReadWatch
  | RemoveAdapter
  | SetAdapter
  | ListAdapters
  | RemoveModule
  | ListAddedModules
  | ReadHistory
  | ReadTree
  | ReadPooled
  | Run
  | Resume
  | Step
  | Back
  | Pause
  | ReadStop
  | ReadLogits
  | SetBreakpoint
  | EnableBreakpoint
  | ClearBreakpoints
  | ReadPass
  | RevertEdits
  | EnableEdit
  | Unsteer
  | ApplyEdit
  | EnableRule
  | Steer
  | Open
  | Describe
  | AcceptRecomputed
  | Close
  | Fork
  | ListSessions
  | ReadStatistics
  | RestoreCheckpoint
  | DropCheckpoint
  | SaveCheckpoint
  | ListCheckpoints
  | SwapOut
  | SwapIn
  | Rest
  | Sleep
  | Wake
  | ReadCopies
  | ListModules
  | Tokenize
  | Detokenize
  | Attribute;
