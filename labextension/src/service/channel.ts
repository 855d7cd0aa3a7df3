/* The interface to the server: requests go out, live messages come in. Knows no sockets; tests implement it with a double. */

import { IDisposable } from '@lumino/disposable';
import { ISignal } from '@lumino/signaling';

import { Connection } from '../models/connection';
import { IDjinn } from '../tokens';
import { Answers, Failed, Live, Said } from '../wire';

export interface IChannel extends IDisposable {
  /** The engine's reply to a request that is asked beside `notebook`. Rejects with `RequestRefused`. */
  sendRequest<K extends keyof Answers>(
    engine: string,
    request: IDjinn.RequestOf<K>,
    notebook: string | null
  ): Promise<Answers[K]>;
  /** Sent when the connection is open, dropped otherwise: what matters is said again after each snapshot. */
  send(message: Said): void;
  /** Try now, without waiting for the back-off. */
  connect(): void;
  readonly messageReceived: ISignal<IChannel, Live>;
  readonly connection: Connection;
  readonly connectionStatusChanged: ISignal<IChannel, Connection>;
}

/** What an engine, or the server for it, refused; `code` is a class of djinn_jupyter.errors. */
export class RequestRefused extends Error {
  constructor(failed: Pick<Failed, 'code' | 'message'>) {
    super(failed.message);
    this.name = failed.code;
  }
}

/** A text for a person, of whatever was thrown. */
export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
