/*
 * Which session is shown, and so which one keys and buttons act on: the one that the notebook in front works with, until
 * a person picks another. Pure: what happens goes in, the place comes out.
 */

import { LiveState, Place, find, key, places } from './live';
import { LiveSession } from '../wire';

export interface Choice {
  /** The notebook in front by its contents path; null where something else is in front. */
  readonly notebook: string | null;
  /** What it was called before it was renamed, until its session is seen under the new name. */
  readonly renamed: string | null;
  /** The session that it works with. */
  readonly own: Place | null;
  /** A person's pick, since that notebook came to the front; it may not be there yet. */
  readonly picked: Place | null;
  /** What is shown. */
  readonly shown: Place | null;
}

export const NO_CHOICE: Choice = {
  notebook: null,
  renamed: null,
  own: null,
  picked: null,
  shown: null
};

/** Another notebook is in front, or none: what was picked beside the one before is forgotten. */
export function toFront(choice: Choice, live: LiveState, notebook: string | null): Choice {
  const picked = notebook === null ? choice.picked : null;
  return notebook === choice.notebook
    ? choice
    : settle({ ...choice, notebook, renamed: null, own: null, picked }, live);
}

/** The notebook in front has another path. */
export function renamed(choice: Choice, live: LiveState, notebook: string): Choice {
  return notebook === choice.notebook
    ? choice
    : settle({ ...choice, notebook, renamed: choice.notebook }, live);
}

export function pick(choice: Choice, live: LiveState, place: Place | null): Choice {
  return settle({ ...choice, picked: place }, live);
}

/** After anything: a notebook that goes over to another session takes the view with it, away from a person's pick. */
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
 * The session that a notebook works with: the one that its kernel says, else the one called after it, else another one
 * that its kernel holds.
 */
export function ownOf(live: LiveState, notebook: string): Place | null {
  const theirs = places(live).filter(({ session }) => session.notebook === notebook);
  const ranked = theirs.map(one => ({ ...one, rank: rank(one.session, notebook) }));
  return ranked.sort((a, b) => a.rank - b.rank)[0]?.place ?? null;
}

/** By a notebook's path, the paths that it had before it was renamed, the last one first. */
export type Formerly = ReadonlyMap<string, readonly string[]>;

/** `before` is called `after` from now on. */
export function rename(formerly: Formerly, before: string, after: string): Formerly {
  const names = [before, ...(formerly.get(before) ?? [])].filter(name => name !== after);
  return new Map([...[...formerly].filter(([path]) => path !== after), [after, names]]);
}

/**
 * What a notebook left behind under a name of before: a session with something in it that is not its own any more, as
 * after a restart of its kernel.
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

/** A notebook that was just renamed works with what it worked with, as long as its kernel holds that. */
function stillOwn({ own, renamed }: Choice, live: LiveState): Place | null {
  const session = find(live, own);
  return session !== null && session.kernel !== null && session.notebook === renamed ? own : null;
}

/** Where no notebook is in front: what was shown, else one that is stopped, else any. */
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
