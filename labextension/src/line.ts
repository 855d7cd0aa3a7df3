/* The one seam to the server: requests go out, live messages come in. Knows no sockets; a test puts a double here. */

import { ISignal } from '@lumino/signaling';

import { Answers, Failed, Live, Said, WireRequest } from './wire';

export type RequestOf<K extends keyof Answers> = Extract<WireRequest, { request: K }>;

/**
 * Where the connection stands. `absent`: the server has no Djinn extension; `forbidden`: it does not let this user in;
 * `lost`: it is tried again by itself, after `seconds`.
 */
export type Connection =
  | { readonly kind: 'connecting' }
  | { readonly kind: 'open' }
  | { readonly kind: 'lost'; readonly seconds: number }
  | { readonly kind: 'absent' }
  | { readonly kind: 'forbidden' };

export interface ILine {
  /** The engine's reply. Rejects with `AskFailed`. */
  ask<K extends keyof Answers>(engine: string, request: RequestOf<K>): Promise<Answers[K]>;
  /** Sent when the connection is open, dropped otherwise: what matters is said again after each snapshot. */
  say(said: Said): void;
  /** Try now, without waiting for the back-off. */
  connect(): void;
  readonly heard: ISignal<ILine, Live>;
  readonly connection: Connection;
  readonly connectionChanged: ISignal<ILine, Connection>;
}

/** What an engine, or the server for it, refused; `code` is a class of djinn_jupyter.errors. */
export class AskFailed extends Error {
  constructor(failed: Pick<Failed, 'code' | 'message'>) {
    super(failed.message);
    this.name = failed.code;
  }
}

/** A text for a person, of whatever was thrown. */
export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
