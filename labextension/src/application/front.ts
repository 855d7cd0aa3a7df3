/* The notebook in front, if any: its present path, also after it was renamed. */

import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { IDjinn } from '../tokens';

/** The part of JupyterLab's document context in use. */
export interface IDocument {
  readonly path: string;
  readonly pathChanged: ISignal<unknown, string>;
}

export class Front implements IDisposable {
  constructor(service: IDjinn) {
    this._service = service;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    this._document = null;
    Signal.clearData(this);
  }

  show(document: IDocument | null): void {
    if (this._isDisposed) {
      return;
    }
    this._document?.pathChanged.disconnect(this._onRename, this);
    this._document = document;
    document?.pathChanged.connect(this._onRename, this);
    this._service.focus(notebook(document?.path));
  }

  private _onRename(_: unknown, path: string): void {
    const now = notebook(path);
    if (now !== null && this._service.model.notebook !== null) {
      this._service.renamed(now);
    } else {
      this._service.focus(now);
    }
  }

  private readonly _service: IDjinn;
  private _document: IDocument | null = null;
  private _isDisposed = false;
}

function notebook(path: string | undefined): string | null {
  return path?.endsWith('.ipynb') ? path : null;
}
