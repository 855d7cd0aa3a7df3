/* The cell that attaches a notebook to a session: its text, and dragging it with a session. */

import { MimeData } from '@lumino/coreutils';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Drag } from '@lumino/dragdrop';

/** The MIME type of cells in JupyterLab's notebooks. */
const CELLS = 'application/vnd.jupyter.cells';
/** The pixels that the pointer moves before a press is a drag, as in JupyterLab. */
const THRESHOLD = 5;

/** The text of the cell that attaches a notebook to this session. `load` is the field of `EngineFound`. */
export function attachCell(load: string, session: string): string {
  return `%load_ext djinn_jupyter\n%djinn_load ${load}\n%djinn_use ${quoted(session)} --join`;
}

/** Quote a word of a magic's line, which removes a pair of quotes and has no escapes. */
function quoted(word: string): string {
  return /^[^\s"'#]+$/.test(word) ? word : word.includes('"') ? `'${word}'` : `"${word}"`;
}

/** Notebooks insert it as a cell, editors as text. */
export function mimeOf(source: string): MimeData {
  const cell = { cell_type: 'code', source, metadata: {}, outputs: [], execution_count: null };
  const mime = new MimeData();
  mime.setData(CELLS, [cell]);
  mime.setData('text/plain', source);
  return mime;
}

export interface Pressed {
  readonly button: number;
  readonly clientX: number;
  readonly clientY: number;
  readonly pointerType: string;
}

/**
 * Begin to drag `source` when the pressed pointer has moved far enough. A finger scrolls instead. Dispose the result to
 * stop listening.
 */
export function dragFrom(pressed: Pressed, source: string, label: string): IDisposable {
  if (pressed.button !== 0 || pressed.pointerType === 'touch') {
    return new DisposableDelegate(() => undefined);
  }
  const moved = (event: PointerEvent): void => {
    const { clientX, clientY } = event;
    if (Math.hypot(clientX - pressed.clientX, clientY - pressed.clientY) < THRESHOLD) {
      return;
    }
    released();
    const drag = new Drag({
      mimeData: mimeOf(source),
      dragImage: image(label),
      supportedActions: 'copy',
      proposedAction: 'copy'
    });
    void drag.start(clientX, clientY);
  };
  const released = (): void => {
    document.removeEventListener('pointermove', moved, true);
    document.removeEventListener('pointerup', released, true);
    document.removeEventListener('pointercancel', released, true);
  };
  document.addEventListener('pointermove', moved, true);
  document.addEventListener('pointerup', released, true);
  document.addEventListener('pointercancel', released, true);
  return new DisposableDelegate(released);
}

function image(label: string): HTMLElement {
  const node = document.createElement('div');
  node.className = 'djinn-dragImage';
  node.textContent = label;
  return node;
}
