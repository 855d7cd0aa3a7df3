import { find, follows, NOTHING, places, reduce } from '../src/models/live';
import { LiveDelta } from '../src/wire';
import { engine, session, snapshot } from './double';

const begun = reduce(
  NOTHING,
  snapshot(7, [engine('e1', session('b'), session('a', {}, 'a.ipynb')), engine('e2', session('c'))])
);

function delta(sequence: number, more: Partial<LiveDelta>): LiveDelta {
  return { live: 'delta', sequence, at: 101, appeared: {}, changed: {}, gone: {}, ...more };
}

test('a snapshot is taken at any time, other messages only in their order', () => {
  expect(follows(NOTHING, snapshot(9, []))).toBe(true);
  expect(follows(NOTHING, delta(0, {}))).toBe(false);
  expect(follows(begun, delta(8, {}))).toBe(true);
  expect(follows(begun, delta(9, {}))).toBe(false);
  expect(follows(begun, delta(7, {}))).toBe(false);
});

test('a delta replaces sessions whole, drops those that are null, and leaves the rest as it is', () => {
  const sessions = { a: session('a', { state: 'paused' }), b: null };
  const after = reduce(begun, delta(8, { changed: { e1: { sessions } } }));
  expect(find(after, { engine: 'e1', session: 'a' })?.described.state).toBe('paused');
  expect(find(after, { engine: 'e1', session: 'b' })).toBeNull();
  expect(after.engines.e2).toBe(begun.engines.e2);
  expect(find(begun, { engine: 'e1', session: 'b' })).not.toBeNull();
});

test('an engine that ends is remembered with its reason until that model runs again', () => {
  const ended = reduce(begun, delta(8, { gone: { e1: 'The engine of demo has ended.' } }));
  const asked = reduce(begun, delta(8, { gone: { e1: '' } }));
  expect(asked.engines).toEqual(ended.engines);
  expect(asked.ended).toEqual([]);
  expect(Object.keys(ended.engines)).toEqual(['e2']);
  expect(ended.ended).toEqual([
    { engine: 'e1', model: 'demo', reason: 'The engine of demo has ended.' }
  ]);
  const again = reduce(ended, delta(9, { appeared: { e3: engine('e3') } }));
  expect(again.ended).toEqual([]);
});

test('sessions are listed by engine and label', () => {
  expect(places(begun).map(({ place }) => place.session)).toEqual(['a', 'b', 'c']);
});
