/*
 * The session shown, which keys and buttons act on: the session of the notebook in front, until a person picks another.
 * Pure: events go in, the place comes out.
 */

import { LiveState, Place, find, key, places } from './live';
import { LiveSession } from '../wire';

export interface Choice {
  /** The contents path of the notebook in front; null if something else is in front. */
  readonly notebook: string | null;
  /** Its former name, until its session appears under the new name. */
  readonly renamed: string | null;
  /** Its session. */
  readonly own: Place | null;
  /** A person's pick since that notebook came to the front; it may not exist yet. */
  readonly picked: Place | null;
  /** The session shown. */
  readonly shown: Place | null;
}

export const NO_CHOICE: Choice = {
  notebook: null,
  renamed: null,
  own: null,
  picked: null,
  shown: null
};

/** Another notebook is in front, which drops the pick, or none. */
export function toFront(choice: Choice, live: LiveState, notebook: string | null): Choice {
  const picked = notebook === null ? choice.picked : null;
  return notebook === choice.notebook
    ? choice
    : settle({ ...choice, notebook, renamed: null, own: null, picked }, live);
}

/** The notebook in front was renamed. */
export function renamed(choice: Choice, live: LiveState, notebook: string): Choice {
  return notebook === choice.notebook
    ? choice
    : settle({ ...choice, notebook, renamed: choice.notebook }, live);
}

export function pick(choice: Choice, live: LiveState, place: Place | null): Choice {
  return settle({ ...choice, picked: place }, live);
}

/** After any event: a notebook that changes its session changes the session shown, whatever the person picked. */
export function settle(choice: Choice, live: LiveState): Choice {
  const { notebook } = choice;
  const found = notebook === null ? null : ownOf(live, notebook);
  const own = found ?? stillOwn(choice, live);
  const moved = choice.own !== null && own !== null && key(own) !== key(choice.own);
  const gone = same(choice.picked, choice.shown) && find(live, choice.picked) === null;
  const picked = moved || gone ? null : choice.picked;
  const shown =
    (find(live, picked) ? picked : null) ?? (notebook === null ? besideNone(choice, live) : own);
  return { notebook, renamed: found ? null : choice.renamed, own, picked, shown };
}

/**
 * The session of a notebook: the one its kernel reports, else the one named after it, else another one its kernel
 * holds.
 */
export function ownOf(live: LiveState, notebook: string): Place | null {
  const theirs = places(live).filter(({ session }) => session.notebook === notebook);
  const ranked = theirs.map(one => ({ ...one, rank: rank(one.session, notebook) }));
  return ranked.sort((a, b) => a.rank - b.rank)[0]?.place ?? null;
}

/** The former paths of each notebook by its path, the last one first. */
export type Formerly = ReadonlyMap<string, readonly string[]>;

/** Record that `before` was renamed to `after`. */
export function rename(formerly: Formerly, before: string, after: string): Formerly {
  const names = [before, ...(formerly.get(before) ?? [])].filter(name => name !== after);
  return new Map([...[...formerly].filter(([path]) => path !== after), [after, names]]);
}

/**
 * A session that a notebook left under a former name: not empty, and no longer its own, as after a restart of its
 * kernel.
 */
export function leftBehind(live: LiveState, notebook: string, formerly: Formerly): Place | null {
  const left = (formerly.get(notebook) ?? []).map(path => ownOf(live, path));
  return left.find(place => holdsSomething(find(live, place))) ?? null;
}

function holdsSomething(session: LiveSession | null): boolean {
  return session !== null && session.described.tokens + session.described.breakpoints.length > 0;
}

function rank({ described, kernel }: LiveSession, notebook: string): number {
  const { in_use, name } = described;
  const held = kernel === null ? 4 : 0;
  const named = name === notebook || name.endsWith(`/${notebook}`);
  return held + (in_use && kernel !== null ? 0 : named ? 1 : name.endsWith('.ipynb') ? 2 : 3);
}

/** A notebook that was just renamed keeps its session as long as its kernel holds that. */
function stillOwn({ own, renamed }: Choice, live: LiveState): Place | null {
  const session = find(live, own);
  return session !== null && session.kernel !== null && session.notebook === renamed ? own : null;
}

/** Without a notebook in front: the session shown before, else a stopped one, else any. */
function besideNone({ shown }: Choice, live: LiveState): Place | null {
  if (find(live, shown)) {
    return shown;
  }
  const all = places(live);
  return (all.find(({ session }) => session.described.state === 'paused') ?? all[0])?.place ?? null;
}

export function same(a: Place | null, b: Place | null): boolean {
  return a === b || (a !== null && b !== null && key(a) === key(b));
}
