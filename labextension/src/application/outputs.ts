/* Draws graphs of edges in outputs of cells, instead of the picture that other pages show. */

import { IRenderMime, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ReactWidget } from '@jupyterlab/ui-components';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Panel, Widget } from '@lumino/widgets';
import * as React from 'react';

import { GRAPH_TYPE, Graph, asGraph } from '../models/graph';
import { EdgeGraph } from '../panels/graph';
import { PanelProps } from '../panels/react';

/** Before HTML, which has 50. */
const RANK = 40;

/** Draw graphs on this page. Dispose the result to show the pictures again. */
export function drawGraphs(registry: IRenderMimeRegistry, props: PanelProps): IDisposable {
  registry.addFactory({
    safe: true,
    mimeTypes: [GRAPH_TYPE],
    defaultRank: RANK,
    createRenderer: () => new GraphOutput(props)
  });
  return new DisposableDelegate(() => registry.removeMimeType(GRAPH_TYPE));
}

class GraphOutput extends Panel implements IRenderMime.IRenderer {
  constructor(props: PanelProps) {
    super();
    this._props = props;
    this.addClass('djinn-Output');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const graph = asGraph(model.data[GRAPH_TYPE]);
    this.widgets.slice().forEach(widget => widget.dispose());
    if (graph === null) {
      this.addWidget(textOf(String(model.data['text/plain'] ?? '')));
      return;
    }
    this._props.service.model.showGraph(graph);
    this.addWidget(ReactWidget.create(cardOf(graph, this._props)));
  }

  private readonly _props: PanelProps;
}

function textOf(text: string): Widget {
  const widget = new Widget({ node: document.createElement('pre') });
  widget.node.textContent = text;
  return widget;
}

/** A card like the kernel's: its source above, the graph, and the facts below. */
function cardOf(graph: Graph, props: PanelProps): React.JSX.Element {
  const { createElement: e } = React;
  const { label } = graph;
  const whose =
    label &&
    e('small', { style: { float: 'right', marginTop: 2 } }, props.trans.__('session %1', label));
  const facts = graph.facts.map(([name, value]) =>
    e(
      'tr',
      { key: name },
      e('td', null, e('span', { className: 'dj-soft' }, name)),
      e('td', { className: 'dj-long' }, value)
    )
  );
  return e(
    'div',
    { className: 'djinn' },
    e(
      'div',
      { style: { display: 'flow-root', background: '#8882' } },
      e('strong', null, e('code', null, graph.metric)),
      '\u2003',
      e('span', { className: 'dj-soft' }, `${graph.kind}, ${graph.how}`),
      whose
    ),
    e('div', null, e(EdgeGraph, { ...props, graph })),
    e('div', null, e('table', null, e('tbody', null, facts))),
    ...graph.notes.map(note => e('div', { key: note }, e('div', { className: 'dj-note' }, note)))
  );
}
