/* The tree of stops and forks, as rows to draw: sessions with their stops, forks where they began. Pure. */

import { Branch, StopDescription } from '../wire';

/** A session with a stop in its history: at `index`, `count` stops back. */
export interface Holding {
  readonly branch: Branch;
  readonly index: number;
  /** 0 if the session is at this stop, null if it is before this stop and has to continue to it. */
  readonly back: number | null;
}

export type BranchRow =
  | { readonly kind: 'session'; readonly branch: Branch; readonly depth: number }
  | {
      readonly kind: 'stop';
      readonly id: string;
      readonly stop: StopDescription;
      readonly depth: number;
      /** The session it is listed under, then the forks that share it. */
      readonly held: readonly Holding[];
    };

/** The family of a session: its earliest ancestor that still exists, and all forks of that. */
export function familyRows(branches: readonly Branch[], session: string): readonly BranchRow[] {
  const byName = new Map(branches.map(branch => [branch.session, branch]));
  const root = rootOf(byName, session);
  return root === null ? [] : new Drawing(branches).of(root);
}

/** A session that was closed and reopened under its name may be named as the parent of its own parent. */
function rootOf(byName: ReadonlyMap<string, Branch>, session: string): Branch | null {
  const seen = new Set<Branch>();
  let root = byName.get(session) ?? null;
  for (let next = root; next !== null && !seen.has(next);) {
    seen.add(next);
    root = next;
    next = byName.get(next.forked_from?.session ?? '') ?? null;
  }
  return root;
}

class Drawing {
  constructor(private readonly _branches: readonly Branch[]) {}

  of(branch: Branch, depth = 0, above: ReadonlySet<number> = new Set()): readonly BranchRow[] {
    this._drawn.add(branch);
    const own = branch.stops.filter(({ number }) => number === null || !above.has(number));
    const numbers = new Set([...above, ...own.flatMap(({ number }) => number ?? [])]);
    const forks = (at: (stop: number | null) => boolean): BranchRow[] =>
      this._branches
        .filter(one => one.forked_from?.session === branch.session)
        .filter(one => !this._drawn.has(one) && at(one.forked_from?.stop ?? null))
        .flatMap(one => this.of(one, depth + 1, numbers));
    return [
      { kind: 'session', branch, depth },
      ...own.flatMap(stop => [
        this._row(branch, stop, depth),
        ...forks(number => number !== null && number === stop.number)
      ]),
      ...forks(() => true)
    ];
  }

  private _row(branch: Branch, stop: StopDescription, depth: number): BranchRow {
    const held = [branch, ...this._branches.filter(one => one !== branch)].flatMap(one =>
      one.stops
        .filter(it => (one === branch ? it === stop : isSame(it, stop)))
        .map(({ index }) => ({ branch: one, index, back: backTo(one, index) }))
    );
    return { kind: 'stop', id: `${branch.session} ${stop.index}`, stop, depth, held };
  }

  private readonly _drawn = new Set<Branch>();
}

function isSame(a: StopDescription, b: StopDescription): boolean {
  return a.number !== null && a.number === b.number;
}

/** The number of stops that a session has to go back to reach one of its history. */
function backTo({ present, stops }: Branch, index: number): number | null {
  const count = (present ?? stops.length) - index;
  return count < 0 ? null : count;
}
