/* What outlives a reload of the page: the session that was chosen and the panels that were folded. */

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
}

export async function keepState(
  service: DjinnService,
  sidebar: Sidebar,
  states: IStateDB
): Promise<void> {
  const kept = readKept(await states.fetch(KEY));
  let { chosen } = kept;
  sidebar.folded = kept.folded;
  service.model.opened = new Set(kept.opened);
  let { opened } = service.model;
  if (chosen && service.model.notebook === null) {
    service.model.choose(chosen);
  }
  const save = (): void => {
    const now: Kept = { chosen, folded: sidebar.folded, opened: [...opened] };
    void states.save(KEY, now as unknown as ReadonlyPartialJSONValue);
  };
  sidebar.foldedChanged.connect(save);
  service.model.changed.connect(() => {
    const { model } = service;
    if ((model.chosen && !same(model.chosen, chosen)) || model.opened !== opened) {
      chosen = model.chosen ?? chosen;
      opened = model.opened;
      save();
    }
  });
}

/** What an earlier visit left; anything else counts as nothing. */
export function readKept(value: unknown): Kept {
  const { chosen, folded, opened } = (
    typeof value === 'object' && value !== null ? value : {}
  ) as Record<string, unknown>;
  return {
    chosen: isPlace(chosen) ? { engine: chosen.engine, session: chosen.session } : null,
    folded: texts(folded) ?? ['djinn-memory'],
    opened: texts(opened) ?? []
  };
}

function texts(value: unknown): string[] | null {
  return Array.isArray(value) ? value.filter(one => typeof one === 'string') : null;
}

function isPlace(value: unknown): value is Place {
  const place = value as Partial<Place> | null | undefined;
  return typeof place?.engine === 'string' && typeof place.session === 'string';
}
