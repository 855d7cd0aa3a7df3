/* The sentences of failed requests, each under the subject of its request. Pure. */

import { StopDescription } from '../wire';
import { LiveState } from './live';

/**
 * What a request is about: the control that asked shows its refusal. `session` is null for a request to an engine.
 * `about` names the control: `move`, `swap`, `breakpoint 3`, `breakpoint at z.4`, `stop 7`.
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

/** The sentence about a subject, null where its last request succeeded. */
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

/** The same map where nothing was refused about the subject. */
export function withdraw(refusals: Refusals, subject: Subject): Refusals {
  return kept(refusals, refusal => spellSubject(refusal.subject) !== spellSubject(subject));
}

/** Without the refusals of sessions and engines that are gone: their controls are gone too. */
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
