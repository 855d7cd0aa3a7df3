/* What outlives a reload of the page: the session that was chosen and the panels that were folded. */

import { IStateDB } from '@jupyterlab/statedb';
import { ReadonlyPartialJSONValue } from '@lumino/coreutils';

import { Place } from './live';
import { same } from './model';
import { DjinnService } from './service';
import { Sidebar } from './sidebar';

const KEY = 'djinn-jupyter:sidebar';

interface Kept {
  readonly chosen: Place | null;
  readonly folded: readonly string[];
}

export async function keepState(
  service: DjinnService,
  sidebar: Sidebar,
  states: IStateDB
): Promise<void> {
  const kept = readKept(await states.fetch(KEY));
  let { chosen } = kept;
  sidebar.folded = kept.folded;
  if (chosen && service.model.notebook === null) {
    service.model.choose(chosen);
  }
  const save = (): void => {
    const now: Kept = { chosen, folded: sidebar.folded };
    void states.save(KEY, now as unknown as ReadonlyPartialJSONValue);
  };
  sidebar.foldedChanged.connect(save);
  service.model.changed.connect(() => {
    if (service.model.chosen && !same(service.model.chosen, chosen)) {
      chosen = service.model.chosen;
      save();
    }
  });
}

/** What an earlier visit left; anything else counts as nothing. */
export function readKept(value: unknown): Kept {
  const { chosen, folded } = (typeof value === 'object' && value !== null ? value : {}) as Record<
    string,
    unknown
  >;
  return {
    chosen: isPlace(chosen) ? { engine: chosen.engine, session: chosen.session } : null,
    folded: Array.isArray(folded) ? folded.filter(id => typeof id === 'string') : ['djinn-memory']
  };
}

function isPlace(value: unknown): value is Place {
  const place = value as Partial<Place> | null | undefined;
  return typeof place?.engine === 'string' && typeof place.session === 'string';
}
