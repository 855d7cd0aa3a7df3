/* Sessions of closed notebooks that a person closes: they are set aside first, and closed when the time for undo is over. Pure. */

import { LiveState, Placed, key, places } from './live';
import { LiveSession } from '../wire';

/** The seconds in which a closing can be undone. */
export const UNDO_SECONDS = 30;

/** A closing that can still be undone. */
export interface Closing {
  readonly engine: string;
  /** When the sessions are closed, in seconds since the epoch. */
  readonly due: number;
  /** The state of each session, by key, when it was set aside. */
  readonly states: ReadonlyMap<string, string>;
}

/** The sessions of closed notebooks of an engine. */
export function leftOf(live: LiveState, engine: string): Placed[] {
  return places(live).filter(({ place, session }) => place.engine === engine && session.closed);
}

export function begin(live: LiveState, engine: string, now: number): Closing {
  const states = leftOf(live, engine).map(
    ({ place, session }) => [key(place), stateOf(session)] as const
  );
  return { engine, due: now + UNDO_SECONDS, states: new Map(states) };
}

/** The sessions that are still set aside: one that was opened or used meanwhile is not. */
export function aside(live: LiveState, closing: Closing | undefined): Placed[] {
  return closing === undefined
    ? []
    : leftOf(live, closing.engine).filter(
        ({ place, session }) => closing.states.get(key(place)) === stateOf(session)
      );
}

function stateOf({ described }: LiveSession): string {
  const { stop, tokens, breakpoints, rules, watches } = described;
  return JSON.stringify([stop, tokens, breakpoints, rules, watches]);
}
