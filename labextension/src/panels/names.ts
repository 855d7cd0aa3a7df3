/* The names of the commands, which are all that callers need. */

import { ReadonlyPartialJSONObject } from '@lumino/coreutils';

export namespace CommandIDs {
  export const show = 'djinn:show';
  export const resume = 'djinn:resume';
  export const pause = 'djinn:pause';
  export const step = 'djinn:step';
  export const stepToken = 'djinn:step-token';
  export const stepIn = 'djinn:step-in';
  export const back = 'djinn:back';
  export const fork = 'djinn:fork';
  export const close = 'djinn:close';
  export const swapOut = 'djinn:swap-out';
  export const swapIn = 'djinn:swap-in';
  export const acceptRecomputed = 'djinn:accept-recomputed';
  export const clearBreakpoints = 'djinn:clear-breakpoints';
  export const openNotebook = 'djinn:open-notebook';
  export const insertAttachCell = 'djinn:insert-attach-cell';
  export const stopEngine = 'djinn:stop-engine';
}

/** In the order of the sidebar's toolbar. */
export const MOVES = [
  CommandIDs.resume,
  CommandIDs.pause,
  CommandIDs.step,
  CommandIDs.stepIn,
  CommandIDs.stepToken,
  CommandIDs.back
] as const;

/** The other commands of one session, in the order of its menu. */
export const SESSION_COMMANDS = [
  CommandIDs.openNotebook,
  CommandIDs.insertAttachCell,
  CommandIDs.fork,
  CommandIDs.swapOut,
  CommandIDs.swapIn,
  CommandIDs.acceptRecomputed,
  CommandIDs.clearBreakpoints,
  CommandIDs.close
] as const;

export type Execute = (id: string, args?: ReadonlyPartialJSONObject) => Promise<unknown>;
