/* JupyterLab as far as the plugins use it, on lumino's own widgets: to activate them in jsdom. */

import { CommandRegistry } from '@lumino/commands';
import { Token } from '@lumino/coreutils';
import { DisposableDelegate } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';
import { AccordionPanel, Panel, PanelLayout, Widget } from '@lumino/widgets';
import * as React from 'react';
import { Root, createRoot } from 'react-dom/client';

import { PROTOCOL } from '../src/wire';
import { trans } from './drawn';

/** A React element in a widget: drawn while it is attached, as JupyterLab's is. */
class ReactWidget extends Widget {
  static create(element: React.JSX.Element): ReactWidget {
    return new ReactWidget(element);
  }

  constructor(private readonly _element: React.JSX.Element) {
    super();
  }

  protected override onAfterAttach(): void {
    this._root = createRoot(this.node);
    this._root.render(this._element);
  }

  protected override onBeforeDetach(): void {
    this._root?.unmount();
  }

  private _root: Root | null = null;
}

class SidePanel extends Widget {
  constructor() {
    super();
    const layout = (this.layout = new PanelLayout());
    layout.addWidget(this.bar);
    layout.addWidget(this.content);
  }

  readonly bar = new Panel();
  readonly content = new AccordionPanel();
  readonly toolbar = {
    node: this.bar.node,
    addItem: (_: string, widget: Widget) => this.bar.addWidget(widget)
  };

  addWidget(widget: Widget): void {
    this.content.addWidget(widget);
  }
}

/** By the name of a package, what is imported from it. */
export const PACKAGES: Record<string, () => object> = {
  '@jupyterlab/ui-components': () => ({
    ...jest.requireActual<object>('./components'),
    ReactWidget,
    SidePanel,
    CommandToolbarButton: Widget,
    fastForwardIcon: null,
    pauseIcon: null,
    runIcon: null,
    stepIntoIcon: null,
    stepOverIcon: null
  }),
  '@jupyterlab/application': () => ({ ILayoutRestorer: new Token('restorer') }),
  '@jupyterlab/apputils': () => ({ ICommandPalette: new Token('palette') }),
  '@jupyterlab/docmanager': () => ({ IDocumentManager: new Token('documents') }),
  '@jupyterlab/rendermime': () => ({ IRenderMimeRegistry: new Token('rendermime') }),
  '@jupyterlab/running': () => ({ IRunningSessionManagers: new Token('running') }),
  '@jupyterlab/settingregistry': () => ({ ISettingRegistry: new Token('settings') }),
  '@jupyterlab/statedb': () => ({ IStateDB: new Token('state') }),
  '@jupyterlab/translation': () => ({
    ITranslator: new Token('translator'),
    nullTranslator: { load: () => trans }
  }),
  '@jupyterlab/coreutils': () => ({
    URLExt: { join: (...parts: string[]) => parts.join('/'), objectToQueryString: () => '' }
  }),
  '@jupyterlab/services': () => ({
    ServerConnection: {
      makeRequest: async () => ({
        status: 200,
        ok: true,
        json: async () => ({ reply: 'Failed', code: 'No', message: 'No.', protocol: PROTOCOL })
      })
    }
  })
};

export class Socket {
  static last: Socket;
  static readonly OPEN = 1;
  readyState = 1;
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  constructor() {
    Socket.last = this;
  }
  send(): void {}
  close(): void {
    this.onclose?.();
  }
}

/** The parts of a running JupyterLab, and what plugins added to its lists and did not take away. */
export class Lab {
  readonly added = new Set<unknown>();
  readonly commands = new CommandRegistry();
  readonly restored = Promise.resolve();
  readonly serviceManager = { serverSettings: { baseUrl: '', wsUrl: '', WebSocket: Socket } };
  readonly notebook = {
    path: 'a.ipynb',
    pathChanged: new Signal<object, string>(this),
    ready: Promise.resolve(),
    model: { cells: [] }
  };
  readonly settings = { composite: { followNotebook: true, memoryMinutes: 1, lensTop: 3 } };
  readonly settingsChanged = new Signal<object, void>(this.settings);
  readonly shell = {
    currentWidget: {},
    currentChanged: new Signal<object, void>(this),
    add: (widget: Widget) => Widget.attach(widget, document.body)
  };

  /** By the name of a token, its service. */
  readonly services: Record<string, unknown> = {
    translator: null,
    restorer: null,
    palette: { addItem: (item: object) => this._add(item) },
    documents: { contextForWidget: () => this.notebook },
    running: {
      add: (list: { readonly runningChanged: Signal<object, unknown> }) => {
        list.runningChanged.connect(() => undefined);
        return this._add(list);
      }
    },
    rendermime: {
      addFactory: ({ mimeTypes }: { readonly mimeTypes: readonly string[] }) =>
        mimeTypes.forEach(type => this.added.add(type)),
      removeMimeType: (type: string) => this.added.delete(type)
    },
    settings: { load: async () => Object.assign(this.settings, { changed: this.settingsChanged }) },
    state: { fetch: async () => undefined, save: async () => undefined }
  };

  private _add(one: unknown): DisposableDelegate {
    this.added.add(one);
    return new DisposableDelegate(() => this.added.delete(one));
  }
}
