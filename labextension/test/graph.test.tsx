/** @jest-environment jsdom */

import { fireEvent, screen } from '@testing-library/react';
import * as React from 'react';

import { findGraphs } from '../src/application/kept';
import { GRAPH_TYPE, Graph, NO_GRAPHS, asGraph, graphsOf, withGraph } from '../src/models/graph';
import { EdgeGraph, Edges } from '../src/panels/graph';
import { PanelProps } from '../src/panels/react';
import { breakpoint, engine, refuse, session } from './double';
import { Drawn, drawn, settled } from './drawn';

const STOP = { session: 'a', number: 12, edition: 12 };
const GRAPH: Graph = {
  kind: 'edges',
  engine: 'e1',
  model: 'demo',
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
    { label: 'embed', site: 'resid_pre.0', x: 100, y: 6, ports: [] },
    {
      label: '0.1',
      site: 'z.0[1]',
      x: 100,
      y: 72,
      ports: [
        { label: 'q', site: 'q.0[1]', x: 85 },
        { label: 'v', site: 'v.0[1]', x: 115 }
      ]
    },
    {
      label: 'mlp 1',
      site: 'mlp_out.1',
      x: 100,
      y: 138,
      ports: [{ label: '', site: 'mlp_in.1', x: 100 }]
    }
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

test('a feature is stopped at its position, and a second click takes that breakpoint away', async () => {
  const feature = {
    label: '7 @3',
    site: 'tc.1[7]',
    when: 'position == 3',
    x: 100,
    y: 72,
    ports: []
  };
  const { channel, has } = shown({ ...GRAPH, nodes: [feature], edges: [] });
  await has(session('a', { stop: STOP, breakpoints: [breakpoint(2, 'tc.1[7]')] }));
  const node = screen.getByLabelText('Breakpoint at tc.1[7] when position == 3');
  expect(node.getAttribute('aria-pressed')).toBe('false');
  await settled(() => fireEvent.click(node));
  const at = { session: 'a', site: 'tc.1[7]', when: 'position == 3', once: false };
  expect(channel.asked[0].request).toEqual({ request: 'SetBreakpoint', ...at });
  const set = { ...breakpoint(3, 'tc.1[7]'), when: 'position == 3' };
  await has(session('a', { stop: STOP, breakpoints: [set] }));
  expect(node.getAttribute('aria-pressed')).toBe('true');
  await settled(() => fireEvent.click(node));
  expect(channel.asked[1].request).toEqual({
    request: 'ClearBreakpoints',
    session: 'a',
    sites: ['3']
  });
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

test('a breakpoint where edges come in marks the node, and is not one at what it writes', async () => {
  const { has } = shown(GRAPH);
  await has(session('a', { breakpoints: [breakpoint(3, 'v.0[1]'), breakpoint(4, 'mlp_in.1')] }));
  const node = screen.getByLabelText('Breakpoint at z.0[1], there is one at v.0[1]');
  expect(node.getAttribute('aria-pressed')).toBe('false');
  expect(node.classList).toContain('djinn-mod-within');
  expect(node.querySelector('circle')!.getAttribute('cx')).toBe('115');
  expect(node.querySelector('.djinn-mod-set')!.textContent).toBe('v');
  expect(screen.getByLabelText('Breakpoint at mlp_out.1, there is one at mlp_in.1')).toBeTruthy();
  await has(session('a', { breakpoints: [breakpoint(5, 'z.0[1]')] }));
  expect(node.classList).toContain('djinn-mod-set');
  expect(node.querySelectorAll('circle').length).toBe(1);
});

test('a session that has moved on is told, and one that is gone leaves the clicks to the chosen one', async () => {
  const { channel, service, has, show } = shown(GRAPH);
  const said = (): string | null => screen.getByRole('status').textContent;
  await has(session('a', { stop: { ...STOP, number: 13, edition: 13 } }));
  expect(said()).toContain('It has moved on since.');
  await has(session('b'));
  await settled(() => service.model.choose({ engine: 'e1', session: 'b' }));
  expect(said()).toBe(
    'Read from session a, which is not there now. A click sets a breakpoint in session b, the chosen one.'
  );
  await settled(() => fireEvent.click(document.querySelector('.djinn-Way')!));
  expect(channel.asked[0].request).toMatchObject({ session: 'b', site: 'v.0[1]' });
  await show();
  expect(said()).toContain('Choose a session of its model to stop there.');
  await settled(() => fireEvent.click(document.querySelector('.djinn-Way')!));
  expect((screen.getByLabelText(ROW) as HTMLButtonElement).disabled).toBe(true);
  expect(channel.asked.length).toBe(1);
});

test('a graph of lines of no session stops the chosen session of its model, and no other', async () => {
  const { channel, service, show } = shown({ ...GRAPH, engine: null, session: null, label: null });
  const other = engine('e2', session('c'));
  const named = { ...other.found, description: { ...other.found.description!, name: 'gpt2' } };
  await show(engine('e1', session('a')), { ...other, found: named });
  const click = (): Promise<void> =>
    settled(() => fireEvent.click(document.querySelector('.djinn-Way')!));
  await settled(() => service.model.choose({ engine: 'e2', session: 'c' }));
  await click();
  expect(channel.asked).toEqual([]);
  await settled(() => service.model.choose({ engine: 'e1', session: 'a' }));
  await click();
  expect(channel.asked[0]).toMatchObject({ engine: 'e1', request: { session: 'a' } });
  expect(screen.getByRole('status').textContent).toContain('Read from lines of no session.');
});

test('a refusal stands below the graph', async () => {
  const { channel, has } = shown(GRAPH);
  await has(session('a', { stop: STOP }));
  channel.answer = () => refuse('There is no such site.');
  await settled(() => fireEvent.click(screen.getByLabelText(ROW)));
  expect(screen.getByRole('alert').textContent).toBe('There is no such site.');
});

test('the sidebar shows the graphs of the session that is chosen, one at a time', async () => {
  const { service, has } = drawn(Edges);
  await has(session('a', { stop: STOP }), session('b'));
  await settled(() => service.model.choose({ engine: 'e1', session: 'b' }));
  await settled(() => service.model.showGraph(GRAPH));
  expect(screen.getByText(/appear here/)).toBeTruthy();
  await settled(() => service.model.choose({ engine: 'e1', session: 'a' }));
  expect(screen.getByLabelText('Edges of logit(5)')).toBeTruthy();
  expect(screen.queryByLabelText('Graph')).toBeNull();
  await settled(() => service.model.showGraph({ ...GRAPH, kind: 'circuit', metric: 'logit(6)' }));
  expect(screen.getByLabelText('Edges of logit(6)')).toBeTruthy();
  const choice = screen.getByLabelText('Graph') as HTMLSelectElement;
  expect([...choice.options].map(({ text }) => text)).toEqual([
    'circuit, EAP: logit(6)',
    'edges, EAP: logit(5)'
  ]);
  await settled(() => fireEvent.change(choice, { target: { value: choice.options[1].value } }));
  expect(screen.getByLabelText('Edges of logit(5)')).toBeTruthy();
});

test('an earlier graph comes before a later one, and one that is known not again', () => {
  const { live } = drawn(Edges).service.model;
  const later = { ...GRAPH, stop: { number: 14, edition: 14 } };
  const both = withGraph(withGraph(NO_GRAPHS, later), GRAPH);
  expect(graphsOf(both, live, { engine: 'e1', session: 'a' })).toEqual([later, GRAPH]);
  expect(withGraph(both, { ...GRAPH })).toBe(both);
  expect(graphsOf(both, live, null)).toEqual([]);
});

test('after a reload the graphs are those in the outputs of the notebook', async () => {
  const { service, has } = drawn(Edges);
  await has(session('a', { stop: STOP }));
  const outputs = [{ data: { 'text/plain': 'x' } }, { data: { [GRAPH_TYPE]: GRAPH } }];
  const cells = [{}, { outputs: { length: 2, get: (index: number) => outputs[index] } }];
  await settled(() => findGraphs({ cells }, service));
  await settled(() => findGraphs({ text: 'no notebook' }, service));
  await settled(() => service.model.choose({ engine: 'e1', session: 'a' }));
  expect(screen.getByLabelText('Edges of logit(5)')).toBeTruthy();
  expect(service.model.graphs).toEqual([GRAPH]);
});

test('what is no graph is none', () => {
  expect(asGraph(GRAPH)).toBe(GRAPH);
  expect([null, 3, {}, { ...GRAPH, nodes: [{}] }, { ...GRAPH, edges: 'x' }].map(asGraph)).toEqual(
    Array(5).fill(null)
  );
});

test('kinds of nodes are explained, and a group of nodes sets no breakpoint', async () => {
  const named = `<b>$x$</b>`;
  const group = { label: named, site: '', x: 300, y: 72, ports: [], kind: 'group', title: 'a, b' };
  const { channel, has } = shown({
    ...GRAPH,
    legend: 'as thick as its influence',
    kinds: [['group', 'a group of nodes']],
    nodes: [...GRAPH.nodes, group],
    edges: [{ ...GRAPH.edges[0], reader: named, site: '', rises: true }]
  });
  await has(session('a', { stop: STOP }));
  expect(document.querySelector('.djinn-Graph-legend')!.textContent).toBe(
    'as thick as its influencea group of nodes'
  );
  const box = screen.getByRole('button', { name: 'a, b' });
  expect(box.getAttribute('aria-disabled')).toBe('true');
  expect(box.querySelector('text')!.textContent).toBe(named);
  await settled(() => fireEvent.click(box));
  await settled(() => fireEvent.click(document.querySelector('.djinn-Way.djinn-mod-rises')!));
  expect(
    screen.getByRole<HTMLButtonElement>('button', { name: /embed to <b>/ }).disabled
  ).toBeTruthy();
  expect(channel.asked).toEqual([]);
});
