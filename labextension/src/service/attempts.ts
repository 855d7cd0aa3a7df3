/* Requests whose refusals stay in the model under their subject until they succeed. Chooses no requests. */

import { Place, key } from '../models/live';
import { Subject, refusalOf } from '../models/refusals';
import { IDjinn } from '../tokens';
import { Answers, LiveOutcome } from '../wire';
import { reasonOf } from './channel';
import { Requests } from './requests';

export class Attempts {
  constructor(service: Pick<IDjinn, 'model' | 'sendRequest' | 'isDisposed'>) {
    this._service = service;
  }

  /** Send a request; keep or remove the refusal of its subject. `done` is called on success. */
  async attempt<K extends keyof Answers>(
    { engine, session }: Place,
    about: string,
    request: IDjinn.RequestOf<K>,
    done: () => void = () => undefined
  ): Promise<void> {
    const subject = { engine, session, about };
    const number = this._requests.begin(subject);
    try {
      await this._service.sendRequest<K>(engine, request);
      this._unlessDisposed(done);
      this._succeed(subject, number);
    } catch (error) {
      this._fail(subject, number, reasonOf(error));
    }
  }

  /** The same for a move, whose reply only accepts it: the outcome follows, or came before the reply. */
  async move<K extends 'Resume' | 'Step' | 'Back'>(
    place: Place,
    about: string,
    request: IDjinn.RequestOf<K>,
    accepted: () => void = () => undefined
  ): Promise<void> {
    const subject = { ...place, about };
    const number = this._requests.begin(subject);
    try {
      const { move } = await this._service.sendRequest<K>(place.engine, request);
      this._unlessDisposed(accepted);
      this._requests.accepted(place, move, subject, number);
      const outcome = this._service.model.live.outcomes[key(place)];
      if (outcome?.move === move) {
        this.settle(outcome);
      }
    } catch (error) {
      this._fail(subject, number, reasonOf(error));
    }
  }

  /** Settle this page's moves that ended while it was not connected. */
  settleAll(outcomes: readonly LiveOutcome[]): void {
    outcomes.filter(outcome => this._requests.waitsFor(outcome)).forEach(this.settle, this);
  }

  /** A move has ended. The failure of a move that this page did not request, or has no reply for yet, is shown at the
      session. */
  settle(outcome: LiveOutcome): void {
    const { model } = this._service;
    const { engine, session, reply } = outcome;
    const atSession = { engine, session, about: 'move' };
    const asked = this._requests.ended(outcome);
    const text = reply.reply === 'Failed' ? reply.message : null;
    if (asked === null) {
      return text === null ? undefined : model.refuse(atSession, text);
    }
    const { subject, number } = asked;
    if (text === null) {
      return this._succeed(subject, number);
    }
    if (refusalOf(model.refusals, atSession) === text) {
      model.withdraw(atSession);
    }
    this._fail(subject, number, text);
  }

  private _succeed(subject: Subject, number: number): void {
    if (this._requests.isLast(subject, number)) {
      this._unlessDisposed(() => this._service.model.withdraw(subject));
    }
  }

  private _fail(subject: Subject, number: number, text: string): void {
    if (this._requests.isLast(subject, number)) {
      this._unlessDisposed(() => this._service.model.refuse(subject, text));
    }
  }

  /** The service may end during a request: its reply then changes nothing. */
  private _unlessDisposed(act: () => void): void {
    if (!this._service.isDisposed) {
      act();
    }
  }

  private readonly _service: Pick<IDjinn, 'model' | 'sendRequest' | 'isDisposed'>;
  private readonly _requests = new Requests();
}
