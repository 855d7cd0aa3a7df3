/* The interface to the server: sends requests, receives live messages. Has no sockets; tests implement it with a
   double. */

import { IDisposable } from '@lumino/disposable';
import { ISignal } from '@lumino/signaling';

import { Connection } from '../models/connection';
import { IDjinn } from '../tokens';
import { Answers, Failed, Live, Said } from '../wire';

export interface IChannel extends IDisposable {
  /** The engine's reply to a request sent beside `notebook`. Rejects with `RequestRefused`. */
  sendRequest<K extends keyof Answers>(
    engine: string,
    request: IDjinn.RequestOf<K>,
    notebook: string | null
  ): Promise<Answers[K]>;
  /** Sends on an open connection, drops otherwise: what matters is sent again after each snapshot. */
  send(message: Said): void;
  /** Try immediately, without waiting for the back-off. */
  connect(): void;
  readonly messageReceived: ISignal<IChannel, Live>;
  readonly connection: Connection;
  readonly connectionStatusChanged: ISignal<IChannel, Connection>;
}

/** A refusal by an engine, or by the server for it; `code` is a class of djinn_jupyter.errors. */
export class RequestRefused extends Error {
  constructor(failed: Pick<Failed, 'code' | 'message'>) {
    super(failed.message);
    this.name = failed.code;
  }
}

/** A readable text of anything thrown. */
export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
