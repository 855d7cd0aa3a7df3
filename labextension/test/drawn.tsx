/* A panel drawn in jsdom around a service with a double of its channel. */

import { act, render } from '@testing-library/react';
import * as React from 'react';

import { PanelProps, Trans } from '../src/panels/react';
import { DjinnService } from '../src/service/service';
import { LiveEngine, LiveSession } from '../src/wire';
import { ChannelDouble, engine, snapshot } from './double';

export const trans: Trans = {
  __: (text, ...values) => fill(text, values),
  _n: (one, many, count, ...values) => fill(count === 1 ? one : many, [count, ...values])
};

function fill(text: string, values: readonly (string | number)[]): string {
  return text.replace(/%(\d)/g, (_, number) => String(values[Number(number) - 1]));
}

export interface Drawn {
  readonly channel: ChannelDouble;
  readonly service: DjinnService;
  /** The server has these engines now; returns when the panel shows them and what it asked is answered. */
  readonly show: (...engines: LiveEngine[]) => Promise<void>;
  /** The same with one engine `e1` of these sessions. */
  readonly has: (...sessions: LiveSession[]) => Promise<void>;
}

export function drawn(
  panel: (props: PanelProps) => React.JSX.Element | null,
  answer?: ChannelDouble['answer']
): Drawn {
  const channel = new ChannelDouble();
  channel.answer = answer ?? channel.answer;
  const service = new DjinnService(channel, '0.1.0');
  render(React.createElement(panel, { service, trans }));
  const show = (...engines: LiveEngine[]): Promise<void> =>
    settled(() => channel.tell(snapshot(0, engines)));
  return { channel, service, show, has: (...sessions) => show(engine('e1', ...sessions)) };
}

/** Do something, and wait until the panel has drawn what came of it: a frame, its answers, and the frame after. */
export async function settled(happen: () => void): Promise<void> {
  await act(async () => {
    happen();
    await frame();
    await frame();
  });
}

function frame(): Promise<void> {
  return new Promise(resolve => requestAnimationFrame(() => resolve()));
}
