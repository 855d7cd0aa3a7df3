/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  BreakpointDescription,
} from './nouns';

export interface BreakpointSet {
  readonly reply: 'BreakpointSet';
  readonly breakpoint: BreakpointDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
}

export interface SetBreakpoint {
  readonly request: 'SetBreakpoint';
  readonly session: string;
  readonly site: string;
  readonly when?: string | null;
  readonly once?: boolean;
}

export interface EnableBreakpoint {
  readonly request: 'EnableBreakpoint';
  readonly session: string;
  readonly number: number;
  readonly enabled: boolean;
}

/** `sites` None clears all; otherwise spellings or numbers. */
export interface ClearBreakpoints {
  readonly request: 'ClearBreakpoints';
  readonly session: string;
  readonly sites?: readonly string[] | null;
}
