/** @jest-environment jsdom */
import { ServerConnection } from '@jupyterlab/services';

import { Connection } from '../src/models/connection';
import { ServerChannel } from '../src/service/serverchannel';
import { PROTOCOL } from '../src/wire';

class Socket {
  static readonly opened: Socket[] = [];
  static readonly OPEN = 1;
  onopen: () => void = () => undefined;
  onclose: () => void = () => undefined;
  constructor() {
    Socket.opened.push(this);
  }
  close(): void {}
}

/** A server of one protocol after another, as it is started again. */
class Server {
  protocol: string | undefined = PROTOCOL;
  readonly asked: string[] = [];

  settings(): ServerConnection.ISettings {
    return {
      baseUrl: 'http://127.0.0.1:1/',
      wsUrl: 'ws://127.0.0.1:1/',
      appUrl: '',
      token: '',
      appendToken: false,
      init: {},
      fetch: async ({ url }: { url: string }) => {
        this.asked.push(url);
        return {
          ok: true,
          status: 200,
          headers: new Map(),
          json: async () => ({ version: '0.2.0', protocol: this.protocol, engines: [] })
        };
      },
      Headers: Map,
      Request: class {
        readonly headers = new Map();
        constructor(readonly url: string) {}
      },
      WebSocket: Socket
    } as unknown as ServerConnection.ISettings;
  }
}

const turn = (): Promise<void> => new Promise(resolve => window.setTimeout(resolve));

async function connected(server: Server): Promise<{ channel: ServerChannel; was: Connection[] }> {
  const channel = new ServerChannel(server.settings());
  const was: Connection[] = [];
  channel.connectionStatusChanged.connect((_, connection) => was.push(connection));
  channel.connect();
  await turn();
  return { channel, was };
}

afterEach(() => Socket.opened.splice(0));

test('a server of the same messages is listened to', async () => {
  const { channel, was } = await connected(new Server());
  expect(Socket.opened).toHaveLength(1);
  Socket.opened[0].onopen();
  expect(was.at(-1)).toEqual({ kind: 'open' });
  channel.dispose();
});

test('a request names the notebook that it is asked beside, if there is one', async () => {
  const server = new Server();
  const { channel } = await connected(server);
  server.asked.length = 0;
  for (const notebook of ['trips/a & b.ipynb', null]) {
    await channel.sendRequest<'Ping'>('e 1', { request: 'Ping' }, notebook);
  }
  const [beside, alone] = server.asked.map(url => new URL(url));
  expect(beside.pathname).toBe('/djinn/api/engines/e%201/ask');
  expect(beside.searchParams.get('notebook')).toBe('trips/a & b.ipynb');
  expect([...alone.searchParams.keys()]).not.toContain('notebook');
  channel.dispose();
});

test.each(['0123456789abcdef', undefined])(
  'a server of other messages (%s) is not listened to',
  async protocol => {
    const server = new Server();
    server.protocol = protocol;
    const { channel, was } = await connected(server);
    expect(was.at(-1)).toEqual({ kind: 'differs', version: '0.2.0', spoke: false });
    expect(Socket.opened).toHaveLength(0);
    server.protocol = PROTOCOL;
    channel.connect();
    await turn();
    expect(Socket.opened).toHaveLength(1);
    channel.dispose();
  }
);

test('a page that its server has outlived knows that it is the older one', async () => {
  const server = new Server();
  const { channel, was } = await connected(server);
  Socket.opened[0].onopen();
  server.protocol = '0123456789abcdef';
  Socket.opened[0].onclose();
  channel.connect();
  await turn();
  expect(was.at(-1)).toEqual({ kind: 'differs', version: '0.2.0', spoke: true });
  expect(Socket.opened).toHaveLength(1);
  channel.dispose();
});
