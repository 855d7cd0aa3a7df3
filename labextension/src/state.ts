/* What outlives a reload of the page: the session that was chosen, the panels that were folded, notebooks' old names. */

import { IStateDB } from '@jupyterlab/statedb';
import { ReadonlyPartialJSONValue } from '@lumino/coreutils';

import { Place } from './live';
import { same } from './choice';
import { DjinnService } from './service';
import { Sidebar } from './sidebar';

const KEY = 'djinn-jupyter:sidebar';

interface Kept {
  readonly chosen: Place | null;
  readonly folded: readonly string[];
  readonly opened: readonly string[];
  /** Notebooks' paths with those that they had before; the last ones. */
  readonly formerly: readonly (readonly [string, readonly string[]])[];
}

/** So many renamed notebooks are remembered. */
const RENAMED = 50;

export async function keepState(
  service: DjinnService,
  sidebar: Sidebar,
  states: IStateDB
): Promise<void> {
  const kept = readKept(await states.fetch(KEY));
  let { chosen } = kept;
  sidebar.folded = kept.folded;
  service.model.opened = new Set(kept.opened);
  service.model.formerly = new Map([...kept.formerly, ...service.model.formerly]);
  let { opened, formerly } = service.model;
  if (chosen && service.model.notebook === null) {
    service.model.choose(chosen);
  }
  const save = (): void => {
    const now: Kept = {
      chosen,
      folded: sidebar.folded,
      opened: [...opened],
      formerly: [...formerly].slice(-RENAMED)
    };
    void states.save(KEY, now as unknown as ReadonlyPartialJSONValue);
  };
  sidebar.foldedChanged.connect(save);
  service.model.changed.connect(() => {
    const { model } = service;
    const other = model.opened !== opened || model.formerly !== formerly;
    if ((model.chosen && !same(model.chosen, chosen)) || other) {
      chosen = model.chosen ?? chosen;
      ({ opened, formerly } = model);
      save();
    }
  });
}

/** What an earlier visit left; anything else counts as nothing. */
export function readKept(value: unknown): Kept {
  const { chosen, folded, opened, formerly } = (
    typeof value === 'object' && value !== null ? value : {}
  ) as Record<string, unknown>;
  return {
    chosen: isPlace(chosen) ? { engine: chosen.engine, session: chosen.session } : null,
    folded: texts(folded) ?? ['djinn-memory', 'djinn-stops'],
    opened: texts(opened) ?? [],
    formerly: Array.isArray(formerly) ? formerly.filter(isRenamed) : []
  };
}

function texts(value: unknown): string[] | null {
  return Array.isArray(value) ? value.filter(one => typeof one === 'string') : null;
}

function isRenamed(value: unknown): value is [string, string[]] {
  return Array.isArray(value) && typeof value[0] === 'string' && Array.isArray(value[1]);
}

function isPlace(value: unknown): value is Place {
  const place = value as Partial<Place> | null | undefined;
  return typeof place?.engine === 'string' && typeof place.session === 'string';
}
