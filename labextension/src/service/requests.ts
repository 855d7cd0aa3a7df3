/* The pending requests: only the last one of a subject counts; a move is awaited after its reply. */

import { Place, key } from '../models/live';
import { Subject, spellSubject } from '../models/refusals';
import { LiveOutcome } from '../wire';

/** A request by its subject and its number among all of this page. */
export interface Numbered {
  readonly subject: Subject;
  readonly number: number;
}

export class Requests {
  /** Return the number of a new request. */
  begin(subject: Subject): number {
    this._count += 1;
    this._last.set(spellSubject(subject), this._count);
    return this._count;
  }

  /** False once the subject has a later request, whose reply counts. */
  isLast(subject: Subject, number: number): boolean {
    return this._last.get(spellSubject(subject)) === number;
  }

  /** Await the outcome of a move of a session. */
  accepted(place: Place, move: number, subject: Subject, number: number): void {
    this._moves.set(spellMove(place, move), { subject, number });
  }

  waitsFor(outcome: LiveOutcome): boolean {
    return this._moves.has(spellMove(outcome, outcome.move));
  }

  /** Return the request of a move that has ended; null where this page did not ask for it, or has no reply yet. */
  ended(outcome: LiveOutcome): Numbered | null {
    const spelled = spellMove(outcome, outcome.move);
    const asked = this._moves.get(spelled) ?? null;
    this._moves.delete(spelled);
    return asked;
  }

  private _count = 0;
  private readonly _last = new Map<string, number>();
  private readonly _moves = new Map<string, Numbered>();
}

function spellMove({ engine, session }: Place, move: number): string {
  return `${key({ engine, session })}\n${move}`;
}
