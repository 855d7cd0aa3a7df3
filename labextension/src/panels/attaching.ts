/* The cell that attaches a notebook to a session: its text, and the way it travels when a session is dragged. */

import { MimeData } from '@lumino/coreutils';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Drag } from '@lumino/dragdrop';

/** What JupyterLab's notebooks take cells as. */
const CELLS = 'application/vnd.jupyter.cells';
/** Pixels that the pointer goes before a press is a drag, as in JupyterLab. */
const THRESHOLD = 5;

/** What a notebook's cell says to work on this session. `load` is as the engine's `EngineFound` has it. */
export function attachCell(load: string, session: string): string {
  return `%load_ext djinn_jupyter\n%djinn_load ${load}\n%djinn_use ${quoted(session)} --join`;
}

/** As one word of a magic's line, which takes a pair of quotes off and knows no escapes. */
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
 * Begin to drag `source` when the pointer that was pressed goes far enough. A finger scrolls instead. Dispose the result
 * to listen to the pointer no more.
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
