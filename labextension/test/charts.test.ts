/** @jest-environment jsdom */

import type { IRenderMime, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Widget } from '@lumino/widgets';

import { drawCharts } from '../src/application/charts';

const CHART = 'application/vnd.djinn.chart+json';
const PLOTLY = 'application/vnd.plotly.v1+json';
const CARD =
  '<div class="djinn"><b>a sweep</b><p class="picture">1</p><p class="picture">2</p></div>';

type Model = IRenderMime.IMimeModel;

/** JupyterLab's registry, as far as charts use it: HTML is drawn as it is, a figure by its name. */
class Registry {
  constructor(plotly: boolean) {
    this.mimeTypes = plotly ? ['text/html', PLOTLY] : ['text/html'];
  }

  readonly addFactory = (factory: IRenderMime.IRendererFactory): void => {
    this.mimeTypes.push(...factory.mimeTypes);
    this.factory = factory;
  };

  readonly removeMimeType = (type: string): void => {
    this.mimeTypes.splice(this.mimeTypes.indexOf(type), 1);
  };

  readonly createRenderer = (type: string): Widget => {
    const widget = new Widget();
    const renderModel = async ({ data, setData }: Model): Promise<void> => {
      if (type === PLOTLY) {
        widget.addClass('figure');
        widget.node.textContent = (data[type] as unknown as { name: string }).name;
        setData({ data: { 'image/png': '' } }); // as plotly's does, to save its picture
      } else {
        widget.node.innerHTML = String(data[type]);
      }
    };
    return Object.assign(widget, { renderModel });
  };

  readonly mimeTypes: string[];
  factory: IRenderMime.IRendererFactory | null = null;
}

function figure(name: string, width: number | null): object {
  return { name, layout: { height: 260 }, width };
}

/** Draw a card with two pictures, once for each of the `trusts`, and return what is seen. */
async function seen(plotly: boolean, ...trusts: boolean[]): Promise<[Widget, string[]]> {
  const registry = new Registry(plotly);
  drawCharts(registry as unknown as IRenderMimeRegistry);
  const output = registry.factory!.createRenderer({} as IRenderMime.IRendererOptions);
  Widget.attach(output, document.body);
  for (const trusted of trusts) {
    const figures = [figure('one', 384), figure('two', null)];
    await output.renderModel({
      trusted,
      data: { 'text/html': CARD, [CHART]: { pictures: '.picture', figures } as never },
      metadata: {},
      setData: () => {
        throw new Error('nothing is saved beside the figures');
      }
    });
  }
  const nodes = [...output.node.querySelectorAll<HTMLElement>('b, .picture, .figure')];
  return [output, nodes.filter(node => !node.hidden).map(node => node.textContent ?? '')];
}

test('plotly draws in the place of each picture, and the rest of the card stays', async () => {
  const [output, shown] = await seen(true, true);
  expect(shown).toEqual(['a sweep', 'one', 'two']);
  const [one, two] = output.node.querySelectorAll<HTMLElement>('.djinn .figure');
  expect([one.style.height, one.style.maxWidth]).toEqual(['260px', '384px']);
  expect([two.style.height, two.style.maxWidth]).toEqual(['260px', '']);
  output.dispose();
  expect(document.querySelector('.figure')).toBeNull();
});

test('an output that is drawn again has each figure once', async () => {
  const [, shown] = await seen(true, true, true, true);
  expect(shown).toEqual(['a sweep', 'one', 'two']);
});

test.each([
  ['without a renderer of plotly', false, true],
  ['in a notebook that is not trusted', true, false]
])('%s the pictures stay', async (_, plotly, trusted) => {
  const [, shown] = await seen(plotly, trusted);
  expect(shown).toEqual(['a sweep', '1', '2']);
});

test('a page that draws no more charts takes the HTML', () => {
  const registry = new Registry(true);
  const drawn = drawCharts(registry as unknown as IRenderMimeRegistry);
  expect([registry.factory!.safe, registry.factory!.defaultRank]).toEqual([true, -1]);
  drawn.dispose();
  expect(registry.mimeTypes).toEqual(['text/html', PLOTLY]);
});
