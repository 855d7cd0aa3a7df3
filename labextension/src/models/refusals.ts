/* The error sentences of requests by their subjects. Pure. */

import { StopDescription } from '../wire';
import { LiveState } from './live';

/**
 * The subject of a request, whose control shows the refusal. `session` is null for a request to an engine. `about`
 * names the control: `move`, `swap`, `breakpoint 3`, `breakpoint at z.4`, `stop 7`.
 */
export interface Subject {
  readonly engine: string;
  readonly session: string | null;
  readonly about: string;
}

export interface Refusal {
  readonly subject: Subject;
  readonly text: string;
}

/** By the spelling of their subjects. */
export type Refusals = ReadonlyMap<string, Refusal>;

export const NO_REFUSALS: Refusals = new Map();

export function spellSubject({ engine, session, about }: Subject): string {
  return JSON.stringify([engine, session, about]);
}

/** The sentence about a subject, null if its last request succeeded. */
export function refusalOf(refusals: Refusals, subject: Subject): string | null {
  return refusals.get(spellSubject(subject))?.text ?? null;
}

/** A stop as a subject: by its number, which never repeats, where it has one. */
export function aboutStop({ number, index }: Pick<StopDescription, 'number' | 'index'>): string {
  return number === null ? `stop at ${index}` : `stop ${number}`;
}

export function refuse(refusals: Refusals, subject: Subject, text: string): Refusals {
  return new Map(refusals).set(spellSubject(subject), { subject, text });
}

/** The same map if nothing was refused about the subject. */
export function withdraw(refusals: Refusals, subject: Subject): Refusals {
  return kept(refusals, refusal => spellSubject(refusal.subject) !== spellSubject(subject));
}

/** Drop the refusals of sessions and engines that have ended, like their controls. */
export function stillThere(refusals: Refusals, { current, engines }: LiveState): Refusals {
  return kept(
    refusals,
    ({ subject: { engine, session } }) =>
      !current ||
      (session === null ? engine in engines : session in (engines[engine]?.sessions ?? {}))
  );
}

function kept(refusals: Refusals, keep: (refusal: Refusal) => boolean): Refusals {
  const left = [...refusals].filter(([, refusal]) => keep(refusal));
  return left.length === refusals.size ? refusals : new Map(left);
}
