/** @jest-environment jsdom */

import { fireEvent, screen } from '@testing-library/react';
import * as React from 'react';

import { Graph, NO_GRAPHS, asGraph, graphOf, withGraph } from '../src/models/graph';
import { EdgeGraph, Edges } from '../src/panels/graph';
import { PanelProps } from '../src/panels/react';
import { breakpoint, refuse, session } from './double';
import { Drawn, drawn, settled } from './drawn';

const STOP = { session: 'a', number: 12, edition: 12 };
const GRAPH: Graph = {
  engine: 'e1',
  session: 'a',
  label: 'a',
  stop: { number: 12, edition: 12 },
  metric: 'logit(5)',
  how: 'EAP',
  facts: [['clean', '2.0']],
  notes: [],
  width: 420,
  height: 180,
  box: [52, 26],
  nodes: [
    { label: 'embed', site: 'resid_pre.0', x: 100, y: 6, ports: false },
    { label: '0.1', site: 'z.0[1]', x: 100, y: 72, ports: true }
  ],
  edges: [
    {
      writer: 'embed',
      reader: 'v.0[1]',
      site: 'v.0[1]',
      score: 1.5,
      text: '1.5',
      exact: '',
      thickness: 6,
      path: 'M100,32C100,52 115,52 115,72'
    }
  ]
};
const ROW = 'embed to v.0[1]: 1.5. Breakpoint at v.0[1]';

function shown(graph: Graph, answer?: Parameters<typeof drawn>[1]): Drawn {
  return drawn((props: PanelProps) => <EdgeGraph {...props} graph={graph} />, answer);
}

test('a click on an edge sets a breakpoint at its reader, in the session that it was read from', async () => {
  const { channel, has } = shown(GRAPH);
  await has(session('a', { stop: STOP }), session('b'));
  await settled(() => fireEvent.click(document.querySelector('.djinn-Way')!));
  const at = { session: 'a', site: 'v.0[1]', when: null, once: false };
  expect(channel.asked).toEqual([{ engine: 'e1', request: { request: 'SetBreakpoint', ...at } }]);
  await has(session('a', { stop: STOP, breakpoints: [breakpoint(3, 'v.0[1]')] }));
  expect(screen.getByRole('status').textContent).toBe(
    'a stops at v.0[1] when it next comes there.'
  );
  expect(screen.getByLabelText(ROW).getAttribute('aria-pressed')).toBe('true');
});

test('a second click takes the breakpoint away, by its number', async () => {
  const { channel, has } = shown(GRAPH);
  await has(session('a', { stop: STOP, breakpoints: [breakpoint(3, 'v.0[1]')] }));
  await settled(() => fireEvent.click(screen.getByLabelText(ROW)));
  expect(channel.asked[0].request).toEqual({
    request: 'ClearBreakpoints',
    session: 'a',
    sites: ['3']
  });
});

test('nodes and rows are reached by Tab, and Enter and Space set a breakpoint', async () => {
  const { channel, has } = shown(GRAPH);
  await has(session('a', { stop: STOP }));
  const node = screen.getByLabelText('Breakpoint at z.0[1]');
  expect(node.getAttribute('tabindex')).toBe('0');
  await settled(() => fireEvent.keyDown(node, { key: 'Enter' }));
  await settled(() =>
    fireEvent.keyDown(screen.getByLabelText('Breakpoint at resid_pre.0'), { key: ' ' })
  );
  expect(channel.asked.map(({ request }) => 'site' in request && request.site)).toEqual([
    'z.0[1]',
    'resid_pre.0'
  ]);
  expect(screen.getByLabelText(ROW).tagName).toBe('BUTTON');
  await settled(() => screen.getByLabelText(ROW).focus());
  expect(document.querySelector('.djinn-Way')!.classList).toContain('djinn-mod-lit');
});

test('a session that has moved on is told, and one that is gone can stop nothing', async () => {
  const { channel, has } = shown(GRAPH);
  await has(session('a', { stop: { ...STOP, number: 13, edition: 13 } }));
  expect(screen.getByRole('status').textContent).toContain('It has moved on since.');
  await has(session('b'));
  expect(screen.getByRole('status').textContent).toContain('not there now');
  await settled(() => fireEvent.click(document.querySelector('.djinn-Way')!));
  expect((screen.getByLabelText(ROW) as HTMLButtonElement).disabled).toBe(true);
  expect(channel.asked).toEqual([]);
});

test('a refusal stands below the graph', async () => {
  const { channel, has } = shown(GRAPH);
  await has(session('a', { stop: STOP }));
  channel.answer = () => refuse('There is no such site.');
  await settled(() => fireEvent.click(screen.getByLabelText(ROW)));
  expect(screen.getByRole('alert').textContent).toBe('There is no such site.');
});

test('the sidebar shows the graph of the session that is chosen', async () => {
  const { service, has } = drawn(Edges);
  await has(session('a', { stop: STOP }), session('b'));
  await settled(() => service.model.choose({ engine: 'e1', session: 'b' }));
  await settled(() => service.model.showGraph(GRAPH));
  expect(screen.getByText(/appear here/)).toBeTruthy();
  await settled(() => service.model.choose({ engine: 'e1', session: 'a' }));
  expect(screen.getByLabelText('Edges of logit(5)')).toBeTruthy();
});

test('an earlier graph does not take the place of a later one; one of no session is nowhere', () => {
  const later = { ...GRAPH, stop: { number: 14, edition: 14 } };
  const both = withGraph(withGraph(NO_GRAPHS, later), GRAPH);
  expect(graphOf(both, { engine: 'e1', session: 'a' })).toBe(later);
  expect(withGraph(NO_GRAPHS, { ...GRAPH, session: null }).size).toBe(0);
});

test('what is no graph is none', () => {
  expect(asGraph(GRAPH)).toBe(GRAPH);
  expect([null, 3, {}, { ...GRAPH, nodes: [{}] }, { ...GRAPH, edges: 'x' }].map(asGraph)).toEqual(
    Array(5).fill(null)
  );
});
