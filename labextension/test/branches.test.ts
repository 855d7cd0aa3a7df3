import { familyRows } from '../src/models/branches';
import { Branch, StopDescription } from '../src/wire';
import { chance } from './chance';

function stop(index: number, number: number | null): StopDescription {
  return {
    index,
    site: `resid_post.${index}`,
    step: 0,
    position: 0,
    reason: 'step',
    edited: false,
    number
  };
}

function branch(
  session: string,
  numbers: readonly (number | null)[],
  more: Partial<Branch> = {}
): Branch {
  return {
    session,
    state: 'paused',
    stops: numbers.map((number, index) => stop(index, number)),
    present: numbers.length - 1,
    tokens: 5,
    text: '',
    forked_from: null,
    stop: { session, number: 1, edition: 1 },
    dropped: 0,
    ...more
  };
}

/** As it is drawn: a line a row, two blanks a level. */
function picture(branches: readonly Branch[], session: string): string[] {
  return familyRows(branches, session).map(row =>
    row.kind === 'session'
      ? `${'  '.repeat(row.depth)}${row.branch.session}`
      : `${'  '.repeat(row.depth)}- ${row.stop.number} ${row.held
          .map(({ branch: one, back }) => `${one.session}:${back}`)
          .join(' ')}`
  );
}

test('a fork is drawn below the stop where it began, without the stops that it shares', () => {
  const forked_from = { session: 'a', stop: 11, tokens: 5 };
  const branches = [branch('a', [10, 11, 12]), branch('b', [10, 11, 13], { forked_from })];
  const drawn = ['a', '- 10 a:2 b:2', '- 11 a:1 b:1', '  b', '  - 13 b:0', '- 12 a:0'];
  expect(picture(branches, 'a')).toEqual(drawn);
  expect(picture(branches, 'b')).toEqual(drawn);
});

test('another family is left out, and a fork whose parent was closed begins one', () => {
  const forked_from = { session: 'gone', stop: 1, tokens: 5 };
  const branches = [branch('b', [1, 2], { forked_from }), branch('c', [1], { forked_from })];
  expect(picture(branches, 'b')).toEqual(['b', '- 1 b:1 c:0', '- 2 b:0']);
  expect(picture(branches, 'nobody')).toEqual([]);
});

test('what lies before a session that went back cannot be gone back to, and stops without numbers are nobody else\u2019s', () => {
  const branches = [branch('a', [null, null], { present: 0 }), branch('b', [null])];
  expect(picture(branches, 'a')).toEqual(['a', '- null a:0', '- null a:null']);
});

test.each(Array.from({ length: 40 }, (_, seed) => seed))(
  'after any stops, moves back and on, forks, ends and reopened names, all stops of a family are there (%i)',
  seed => {
    const next = chance(seed);
    let given = 0;
    const sessions = new Map<string, Branch>([['s0', branch('s0', [])]]);
    for (let count = 1; count < 60; count += 1) {
      const names = [...sessions.keys()];
      const name = names[next(names.length)];
      const one = sessions.get(name);
      const numbers = one?.stops.map(({ number }) => number) ?? [];
      const put = (stops: readonly (number | null)[], present: number | null): unknown =>
        sessions.set(name, branch(name, stops, { present, forked_from: one?.forked_from }));
      switch (next(5)) {
        case 0: {
          const kept = one?.present == null ? numbers : numbers.slice(0, one.present + 1);
          put([...kept, (given += 1)], kept.length);
          break;
        }
        case 1:
          put(numbers, numbers.length ? next(numbers.length) : null);
          break;
        case 2:
          put(numbers, null);
          break;
        case 3: {
          const fork = `s${next(6)}`;
          if (one && !sessions.has(fork)) {
            const at = numbers.at(one.present ?? -1) ?? null;
            const forked_from = { session: name, stop: at, tokens: 5 };
            sessions.set(fork, { ...one, session: fork, forked_from });
          }
          break;
        }
        case 4:
          if (names.length > 1) {
            sessions.delete(name);
          }
          break;
      }
      const branches = [...sessions.values()];
      const chosen = branches[next(branches.length)];
      const rows = familyRows(branches, chosen.session);
      const family = rows.flatMap(row => (row.kind === 'session' ? [row.branch] : []));
      expect(family).toContain(chosen);
      expect(new Set(family).size).toBe(family.length);
      const held = rows.flatMap(row => (row.kind === 'stop' ? row.held : []));
      for (const member of family) {
        for (const { index } of member.stops) {
          const here = held.find(it => it.branch === member && it.index === index);
          const back = (member.present ?? member.stops.length) - index;
          expect(here?.back).toBe(back < 0 ? null : back);
        }
      }
      const ids = rows.flatMap(row => (row.kind === 'stop' ? [row.id] : []));
      expect(new Set(ids).size).toBe(ids.length);
    }
  }
);
