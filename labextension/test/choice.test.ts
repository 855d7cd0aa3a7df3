import {
  Choice,
  NO_CHOICE,
  Formerly,
  leftBehind,
  rename,
  ownOf,
  pick,
  renamed,
  same,
  settle,
  toFront
} from '../src/models/choice';
import { LiveState, NOTHING, Place, find, places, reduce } from '../src/models/live';
import { LiveSession } from '../src/wire';
import { chance } from './chance';
import { engine, session, snapshot } from './double';

/** A session that the kernel of `notebook` holds. */
function held(name: string, notebook: string, in_use = false): LiveSession {
  const kernel = { id: `kernel of ${notebook}`, state: 'idle' };
  return { ...session(name, { in_use, state: 'paused' }, notebook), kernel };
}

function live(...sessions: LiveSession[]): LiveState {
  return reduce(NOTHING, snapshot(0, [engine('e1', ...sessions)]));
}

function at(name: string): Place {
  return { engine: 'e1', session: name };
}

test('a fork that the notebook does not work with is not shown when one returns to its tab', () => {
  const before = live(held('/w/p.ipynb', 'p.ipynb', true));
  let choice = toFront(NO_CHOICE, before, 'p.ipynb');
  const forked = live(held('/w/p.ipynb', 'p.ipynb', true), held('alt', 'p.ipynb'));
  choice = toFront(settle(choice, forked), forked, 'other.ipynb');
  expect(choice.shown).toBeNull();
  expect(toFront(choice, forked, 'p.ipynb').shown).toEqual(at('/w/p.ipynb'));
});

test('it goes with the notebook to a fork that the notebook goes on with', () => {
  const before = live(held('/w/p.ipynb', 'p.ipynb', true), held('alt', 'p.ipynb'));
  const choice = pick(toFront(NO_CHOICE, before, 'p.ipynb'), before, at('/w/p.ipynb'));
  const after = live(held('/w/p.ipynb', 'p.ipynb'), held('alt', 'p.ipynb', true));
  expect(settle(choice, after).shown).toEqual(at('alt'));
});

test('a person may pick another session, until another notebook comes to the front', () => {
  const both = live(held('/w/p.ipynb', 'p.ipynb', true), held('/w/q.ipynb', 'q.ipynb', true));
  const picked = pick(toFront(NO_CHOICE, both, 'p.ipynb'), both, at('/w/q.ipynb'));
  expect(picked.shown).toEqual(at('/w/q.ipynb'));
  expect(settle(picked, both).shown).toEqual(at('/w/q.ipynb'));
  expect(toFront(toFront(picked, both, 'q.ipynb'), both, 'p.ipynb').shown).toEqual(
    at('/w/p.ipynb')
  );
});

test('beside a notebook without a session nothing is moved, though others stand', () => {
  const there = live(held('/w/p.ipynb', 'p.ipynb', true));
  expect(toFront(settle(NO_CHOICE, there), there, 'plain.ipynb').shown).toBeNull();
});

test('where no notebook is in front it stays with what was shown', () => {
  const both = live(held('/w/a.ipynb', 'a.ipynb', true), held('/w/q.ipynb', 'q.ipynb', true));
  const choice = toFront(toFront(NO_CHOICE, both, 'q.ipynb'), both, null);
  expect(choice.shown).toEqual(at('/w/q.ipynb'));
});

test('a renamed notebook keeps its session while its kernel holds it, and leaves it when the kernel is restarted', () => {
  const before = live(held('/w/old.ipynb', 'old.ipynb', true));
  let choice = renamed(toFront(NO_CHOICE, before, 'old.ipynb'), before, 'new.ipynb');
  expect(choice.shown).toEqual(at('/w/old.ipynb'));
  choice = settle(choice, live(held('/w/old.ipynb', 'new.ipynb', true)));
  expect(choice.shown).toEqual(at('/w/old.ipynb'));
  const orphan = session('/w/old.ipynb', { state: 'paused' }, 'old.ipynb');
  choice = settle(choice, live(orphan));
  expect(choice.shown).toBeNull();
  choice = settle(choice, live(orphan, held('/w/new.ipynb', 'new.ipynb', true)));
  expect(choice.shown).toEqual(at('/w/new.ipynb'));
});

test('a fork that is not there yet is shown as soon as it is, and forgotten when it is closed', () => {
  const before = live(held('/w/p.ipynb', 'p.ipynb', true));
  let choice = pick(toFront(NO_CHOICE, before, 'p.ipynb'), before, at('alt'));
  expect(choice.shown).toEqual(at('/w/p.ipynb'));
  choice = settle(choice, live(held('/w/p.ipynb', 'p.ipynb', true), session('alt')));
  expect(choice.shown).toEqual(at('alt'));
  choice = settle(choice, before);
  expect(choice.shown).toEqual(at('/w/p.ipynb'));
  expect(choice.picked).toBeNull();
});

/* ---- any sequence of what can happen ---- */

interface World {
  /** By name: the notebook whose kernel holds it, null where none does. */
  readonly sessions: Map<string, string | null>;
  /** By notebook: the session that it works with. */
  readonly uses: Map<string, string>;
}

function picture({ sessions, uses }: World): LiveState {
  return live(
    ...[...sessions].map(([name, notebook]) =>
      notebook === null
        ? session(name, {}, name.startsWith('/w/') ? name.slice(3) : null)
        : held(name, notebook, uses.get(notebook) === name)
    )
  );
}

const MOVES = [
  'prompt',
  'fork',
  'use',
  'swap',
  'tab',
  'none',
  'rename',
  'close',
  'restart',
  'pick'
];

test.each(Array.from({ length: 60 }, (_, seed) => seed))(
  'whatever happens, what is shown is there, and it is the notebook\u2019s or was picked beside it (%i)',
  seed => {
    const next = chance(seed);
    const world: World = {
      sessions: new Map([
        ['/w/p.ipynb', 'p.ipynb'],
        ['/w/q.ipynb', 'q.ipynb']
      ]),
      uses: new Map([
        ['p.ipynb', '/w/p.ipynb'],
        ['q.ipynb', '/w/q.ipynb']
      ])
    };
    let tabs = ['p.ipynb', 'q.ipynb', 'plain.ipynb'];
    let choice: Choice = toFront(NO_CHOICE, picture(world), 'p.ipynb');
    let picked: Place | null = null;
    for (let count = 0; count < 80; count += 1) {
      const names = [...world.sessions.keys()];
      const front = choice.notebook;
      const holding = names.filter(name => front !== null && world.sessions.get(name) === front);
      const before = choice.own;
      switch (MOVES[next(MOVES.length)]) {
        case 'fork':
          if (holding.length && front) {
            world.sessions.set(`fork ${count}`, next(2) ? front : null);
          }
          break;
        case 'use':
          if (holding.length && front) {
            world.uses.set(front, holding[next(holding.length)]);
          }
          break;
        case 'tab': {
          const tab = tabs[next(tabs.length)];
          picked = tab === front ? picked : null;
          choice = toFront(choice, picture(world), tab);
          break;
        }
        case 'none':
          choice = toFront(choice, picture(world), null);
          break;
        case 'rename':
          if (front) {
            const name = `new ${count}.ipynb`;
            tabs = tabs.map(tab => (tab === front ? name : tab));
            choice = renamed(choice, picture(world), name);
            const works = world.uses.get(front);
            if (works) {
              world.uses.set(name, works);
            }
            holding.forEach(one => world.sessions.set(one, name));
          }
          break;
        case 'close':
          world.sessions.delete(names[next(names.length)] ?? '');
          break;
        case 'restart':
          if (front) {
            holding.forEach(one => world.sessions.set(one, null));
            world.sessions.set(`/w/${front}`, front);
            world.uses.set(front, `/w/${front}`);
          }
          break;
        case 'pick':
          if (names.length) {
            picked = at(names[next(names.length)]);
            choice = pick(choice, picture(world), picked);
          }
          break;
      }
      const now = picture(world);
      choice = settle(choice, now);
      if (before && choice.own && !same(before, choice.own)) {
        picked = null;
      }
      const { notebook, shown } = choice;
      expect(shown === null || find(now, shown) !== null).toBe(true);
      if (notebook !== null) {
        const works = world.uses.get(notebook);
        const own =
          works && world.sessions.get(works) === notebook ? at(works) : ownOf(now, notebook);
        expect(choice.own).toEqual(own);
        expect(shown).toEqual(picked && find(now, picked) ? picked : own);
      } else {
        expect(shown === null).toBe(places(now).length === 0);
      }
      if (picked && !find(now, picked)) {
        picked = null;
      }
    }
  }
);

/* ---- what a renamed notebook left behind ---- */

test.each(Array.from({ length: 40 }, (_, seed) => seed))(
  'however often it is renamed, restarted and reloaded, what a notebook left behind is pointed out (%i)',
  seed => {
    const next = chance(seed);
    const sessions = new Map<string, string | null>([['s0.ipynb', 's0.ipynb']]);
    let formerly: Formerly = new Map();
    let name = 's0.ipynb';
    let orphan: string | null = null;
    for (let count = 1; count < 30; count += 1) {
      if (next(3)) {
        const to = `s${next(2) ? count : next(count)}.ipynb`;
        if (to !== name && !sessions.has(to)) {
          formerly = new Map(JSON.parse(JSON.stringify([...rename(formerly, name, to)])));
          sessions.forEach((holder, one) => holder === name && sessions.set(one, to));
          name = to;
        }
      } else if (!sessions.has(name)) {
        [...sessions].forEach(([one, holder]) => holder === name && sessions.set(one, null));
        orphan = [...sessions.keys()].find(one => sessions.get(one) === null) ?? null;
        break;
      }
    }
    const there = live(
      ...[...sessions].map(([one, holder]) =>
        holder === null ? session(one, {}, one) : held(one, holder, true)
      )
    );
    const left = leftBehind(there, name, formerly);
    expect(left?.session ?? null).toBe(orphan);
    const empty = live(...[...sessions].map(([one]) => session(one, { tokens: 0 }, one)));
    expect(leftBehind(empty, name, formerly)).toBeNull();
  }
);
