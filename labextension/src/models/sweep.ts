/* Sessions of closed notebooks that a person swept: they are set aside, and closed when the time for undo is over. Pure. */

import { LiveState, Placed, key, places } from './live';
import { LiveSession } from '../wire';

/** The seconds in which a sweep can be undone. */
export const UNDO_SECONDS = 30;

/** A sweep that can still be undone. */
export interface Sweep {
  readonly engine: string;
  /** When the sessions are closed, in seconds since the epoch. */
  readonly due: number;
  /** The state of each session, by key, when it was swept. */
  readonly swept: ReadonlyMap<string, string>;
}

/** The sessions of closed notebooks of an engine. */
export function leftOf(live: LiveState, engine: string): Placed[] {
  return places(live).filter(({ place, session }) => place.engine === engine && session.closed);
}

export function begin(live: LiveState, engine: string, now: number): Sweep {
  const swept = leftOf(live, engine).map(
    ({ place, session }) => [key(place), stateOf(session)] as const
  );
  return { engine, due: now + UNDO_SECONDS, swept: new Map(swept) };
}

/** The sessions that are still set aside: one that was opened or used meanwhile is not. */
export function aside(live: LiveState, sweep: Sweep | undefined): Placed[] {
  return sweep === undefined
    ? []
    : leftOf(live, sweep.engine).filter(
        ({ place, session }) => sweep.swept.get(key(place)) === stateOf(session)
      );
}

function stateOf({ described }: LiveSession): string {
  const { stop, tokens, breakpoints, rules, watches } = described;
  return JSON.stringify([stop, tokens, breakpoints, rules, watches]);
}
