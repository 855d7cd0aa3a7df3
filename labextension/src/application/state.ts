/* State that survives a reload of the page: the chosen session, the folded panels, the old names of notebooks. */

import { IStateDB } from '@jupyterlab/statedb';
import { ReadonlyPartialJSONValue } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { Place } from '../models/live';
import { Formerly, same } from '../models/choice';
import { IDjinn, ISidebar } from '../tokens';

const KEY = 'djinn-jupyter:sidebar';

interface Kept {
  readonly chosen: Place | null;
  readonly folded: readonly string[];
  readonly opened: readonly string[];
  /** The last renamed notebooks: their paths with earlier paths. */
  readonly formerly: readonly (readonly [string, readonly string[]])[];
}

/** The number of renamed notebooks to remember. */
const RENAMED = 50;

/** Restores the state of the earlier visit, and saves each change. */
export class PageState implements IDisposable {
  constructor(service: IDjinn, sidebar: ISidebar, states: IStateDB) {
    this._service = service;
    this._sidebar = sidebar;
    this._states = states;
    sidebar.foldedChanged.connect(this._onFold, this);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  /** Read the earlier state, if it is readable. Later actions of the person take precedence. */
  async restore(): Promise<void> {
    const kept = readKept(await this._states.fetch(KEY).catch(warn));
    if (this._isDisposed) {
      return;
    }
    const { model } = this._service;
    this._chosen = kept.chosen;
    if (!this._folded) {
      this._sidebar.folded = kept.folded;
    }
    model.opened = new Set([...kept.opened, ...model.opened]);
    model.formerly = new Map([...kept.formerly, ...model.formerly]);
    if (kept.chosen && model.notebook === null) {
      model.choose(kept.chosen);
    }
    ({ opened: this._opened, formerly: this._formerly } = model);
    model.stateChanged.connect(this._onChange, this);
    this._restored = true;
    this._save();
  }

  private _onFold(): void {
    this._folded = true;
    if (this._restored) {
      this._save();
    }
  }

  private _onChange(model: IDjinn.IModel): void {
    const other = model.opened !== this._opened || model.formerly !== this._formerly;
    if ((model.chosen && !same(model.chosen, this._chosen)) || other) {
      this._chosen = model.chosen ?? this._chosen;
      ({ opened: this._opened, formerly: this._formerly } = model);
      this._save();
    }
  }

  private _save(): void {
    const now: Kept = {
      chosen: this._chosen,
      folded: this._sidebar.folded,
      opened: [...this._opened],
      formerly: [...this._formerly].slice(-RENAMED)
    };
    this._states.save(KEY, now as unknown as ReadonlyPartialJSONValue).catch(warn);
  }

  private readonly _service: IDjinn;
  private readonly _sidebar: ISidebar;
  private readonly _states: IStateDB;
  private _chosen: Place | null = null;
  private _opened: ReadonlySet<string> = new Set();
  private _formerly: Formerly = new Map();
  /** Record that a person folded or opened a panel. */
  private _folded = false;
  private _restored = false;
  private _isDisposed = false;
}

/** The sidebar works without it; a later visit then begins like the first one. */
function warn(reason: unknown): void {
  console.warn('Djinn: what a reload of the page is to restore cannot be read or saved.', reason);
}

/** The state that an earlier visit saved; anything else counts as none. */
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
