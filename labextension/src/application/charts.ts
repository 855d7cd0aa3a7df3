/* Charts in the outputs of cells: the kernel's own card, in which plotly's renderer draws the pictures. Without that renderer
   the card's pictures stay. */

import { IRenderMime, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Panel, Widget } from '@lumino/widgets';

const CHART_TYPE = 'application/vnd.djinn.chart+json';
const PLOTLY_TYPE = 'application/vnd.plotly.v1+json';
/** Before plotly's own, which would draw a figure without its card. */
const RANK = -1;

/** The plotly figures of a card, and a selector of the pictures in whose place they are drawn. */
interface Chart {
  readonly pictures: string;
  readonly figures: readonly Figure[];
}

/** `width` is the most that it needs, in pixels; null of one that takes all there is. */
interface Figure {
  readonly layout: { readonly height: number };
  readonly width: number | null;
}

/** Draw the charts of cards by plotly on this page. Dispose the result to show the cards' pictures again. */
export function drawCharts(registry: IRenderMimeRegistry): IDisposable {
  registry.addFactory({
    safe: true,
    mimeTypes: [CHART_TYPE],
    defaultRank: RANK,
    createRenderer: () => new ChartOutput(registry)
  });
  return new DisposableDelegate(() => registry.removeMimeType(CHART_TYPE));
}

class ChartOutput extends Panel implements IRenderMime.IRenderer {
  constructor(registry: IRenderMimeRegistry) {
    super();
    this._registry = registry;
    this.addClass('djinn-Output');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    for (const widget of [...this.widgets]) {
      this.node.append(widget.node); // from the card, back to where lumino takes it from
      widget.dispose();
    }
    const card = this._registry.createRenderer('text/html');
    this.addWidget(card);
    await card.renderModel(model);
    if (model.trusted && this._registry.mimeTypes.includes(PLOTLY_TYPE)) {
      const { pictures, figures } = model.data[CHART_TYPE] as unknown as Chart;
      const there = [...card.node.querySelectorAll<HTMLElement>(pictures)];
      await Promise.all(
        figures.slice(0, there.length).map((figure, at) => this._draw(figure, there[at]))
      );
    }
  }

  private async _draw(figure: Figure, picture: HTMLElement): Promise<void> {
    const chart: IRenderMime.IRenderer & Widget = this._registry.createRenderer(PLOTLY_TYPE);
    chart.node.style.height = `${figure.layout.height}px`; // plotly fits the figure in its node
    chart.node.style.maxWidth = figure.width === null ? '' : `${figure.width}px`;
    this.addWidget(chart);
    picture.before(chart.node);
    // plotly's renderer would save a picture of the figure beside it
    await chart.renderModel({
      trusted: true,
      data: { [PLOTLY_TYPE]: figure as never },
      metadata: {},
      setData: () => undefined
    });
    picture.hidden = true;
  }

  private readonly _registry: IRenderMimeRegistry;
}
