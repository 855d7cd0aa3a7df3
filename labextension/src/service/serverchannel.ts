/* The channel to the server extension: REST for requests, one WebSocket for live messages, reopened with back-off. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';

import { Connection } from '../models/connection';
import { IDjinn } from '../tokens';
import { Answers, Engines, Failed, Live, PROTOCOL, Said } from '../wire';
import { IChannel, RequestRefused } from './channel';

const FIRST_SECONDS = 1;
const LONGEST_SECONDS = 30;
/** Without the extension there is nothing to wait for, but a server may restart with it. */
const ABSENT_SECONDS = 60;

export class ServerChannel implements IChannel {
  constructor(settings: ServerConnection.ISettings) {
    this._settings = settings;
  }

  get messageReceived(): ISignal<IChannel, Live> {
    return this._messageReceived;
  }

  get connection(): Connection {
    return this._connection;
  }

  get connectionStatusChanged(): ISignal<IChannel, Connection> {
    return this._connectionStatusChanged;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  async sendRequest<K extends keyof Answers>(
    engine: string,
    request: IDjinn.RequestOf<K>,
    notebook: string | null
  ): Promise<Answers[K]> {
    const body = JSON.stringify(request);
    // A refusal is a reply: by a status, the browser would log it as an error of the page.
    const response = await this._request(`engines/${encodeURIComponent(engine)}/ask`, {
      method: 'POST',
      body,
      query: URLExt.objectToQueryString({ refused: 200, ...(notebook !== null && { notebook }) })
    });
    const reply = await readJson<Answers[K] | Failed>(response);
    if (isFailed(reply)) {
      throw new RequestRefused(reply);
    }
    if (!response.ok) {
      throw new RequestRefused({ code: 'ServerError', message: statusText(response) });
    }
    return reply as Answers[K];
  }

  send(message: Said): void {
    if (this._socket?.readyState === WebSocket.OPEN) {
      this._socket.send(JSON.stringify(message));
    }
  }

  connect(): void {
    window.clearTimeout(this._timer);
    if (!this._disposed && !this._socket) {
      void this._open();
    }
  }

  dispose(): void {
    this._disposed = true;
    window.clearTimeout(this._timer);
    if (this._socket) {
      this._socket.onopen = this._socket.onmessage = this._socket.onclose = null;
      this._socket.close();
      this._socket = null;
    }
    Signal.clearData(this);
  }

  /** A plain request first: a WebSocket cannot report why it was refused. */
  private async _open(): Promise<void> {
    if (this._connection.kind !== 'lost') {
      this._stand({ kind: 'connecting' });
    }
    try {
      const response = await this._request('engines', { method: 'GET' });
      if (response.status === 404) {
        return this._wait({ kind: 'absent' }, ABSENT_SECONDS);
      }
      if (response.status === 401 || response.status === 403) {
        return this._wait({ kind: 'forbidden' }, ABSENT_SECONDS);
      }
      if (response.ok) {
        return this._meet((await response.json()) as Engines);
      }
    } catch {
      // The server does not answer; `_lose` says so, and tries again.
    }
    this._lose();
  }

  /** Listen to a server with the same messages only: others could be misread. */
  private _meet({ version, protocol }: Engines): void {
    if (protocol === PROTOCOL) {
      this._spoke = true;
      return this._listen();
    }
    this._wait({ kind: 'differs', version, spoke: this._spoke }, ABSENT_SECONDS);
  }

  private _listen(): void {
    if (this._disposed || this._socket) {
      return;
    }
    const { wsUrl, token, appendToken } = this._settings;
    const query = appendToken && token ? `?token=${encodeURIComponent(token)}` : '';
    const address = URLExt.join(wsUrl, 'djinn/api/live') + query;
    const socket = new this._settings.WebSocket(address);
    this._socket = socket;
    socket.onopen = () => {
      this._attempts = 0;
      this._stand({ kind: 'open' });
    };
    socket.onmessage = event => this._messageReceived.emit(JSON.parse(event.data) as Live);
    socket.onclose = () => {
      this._socket = null;
      this._lose();
    };
  }

  private _lose(): void {
    const seconds = Math.min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** this._attempts);
    this._attempts += 1;
    this._wait({ kind: 'lost', seconds }, seconds);
  }

  private _wait(connection: Connection, seconds: number): void {
    if (this._disposed) {
      return;
    }
    this._stand(connection);
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => this.connect(), 1000 * seconds);
  }

  private _stand(connection: Connection): void {
    this._connection = connection;
    this._connectionStatusChanged.emit(connection);
  }

  private _request(
    path: string,
    { query = '', ...init }: RequestInit & { readonly query?: string }
  ): Promise<Response> {
    const address = URLExt.join(this._settings.baseUrl, 'djinn/api', path) + query;
    return ServerConnection.makeRequest(address, init, this._settings);
  }

  private readonly _settings: ServerConnection.ISettings;
  private readonly _messageReceived = new Signal<IChannel, Live>(this);
  private readonly _connectionStatusChanged = new Signal<IChannel, Connection>(this);
  private _connection: Connection = { kind: 'connecting' };
  private _socket: WebSocket | null = null;
  private _timer = 0;
  private _attempts = 0;
  private _spoke = false;
  private _disposed = false;
}

async function readJson<T>(response: Response): Promise<T | null> {
  try {
    return (await response.json()) as T;
  } catch {
    return null;
  }
}

function isFailed(reply: unknown): reply is Failed {
  return typeof reply === 'object' && reply !== null && (reply as Failed).reply === 'Failed';
}

function statusText(response: Response): string {
  return `The Jupyter server answered ${response.status} ${response.statusText}`.trim() + '.';
}
