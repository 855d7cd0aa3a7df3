/* The document in front, if it is a notebook: what it is called now, also after it was renamed. */

import { ISignal } from '@lumino/signaling';

import { DjinnService } from './service';

/** The part of JupyterLab's document context that is looked at. */
export interface Document {
  readonly path: string;
  readonly pathChanged: ISignal<unknown, string>;
}

export class Front {
  constructor(service: DjinnService) {
    this._service = service;
  }

  show(document: Document | null): void {
    this._document?.pathChanged.disconnect(this._renamed, this);
    this._document = document;
    document?.pathChanged.connect(this._renamed, this);
    this._service.focus(notebook(document?.path));
  }

  private _renamed(_: unknown, path: string): void {
    const now = notebook(path);
    if (now !== null && this._service.model.notebook !== null) {
      this._service.renamed(now);
    } else {
      this._service.focus(now);
    }
  }

  private readonly _service: DjinnService;
  private _document: Document | null = null;
}

function notebook(path: string | undefined): string | null {
  return path?.endsWith('.ipynb') ? path : null;
}
