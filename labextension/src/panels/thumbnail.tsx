/* A heatmap on a canvas: the theme's warning colour above zero, its brand colour below, the page's colour at zero. */

import * as React from 'react';

import { Picture } from '../models/picture';
import { spellNumber } from '../models/spell';
import { Trans, useTheme } from './react';

interface ThumbnailProps {
  readonly picture: Picture;
  readonly label: string;
  /** The contents of a pixel, in a few words. */
  readonly made: readonly string[];
  readonly trans: Trans;
}

export function Thumbnail({ picture, label, made, trans }: ThumbnailProps): React.JSX.Element {
  const canvas = React.useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  React.useEffect(() => {
    if (canvas.current) {
      draw(canvas.current, picture);
    }
  }, [picture, theme]);
  const height = Math.min(160, Math.max(14, picture.rows * 12));
  return (
    <figure className="djinn-Thumbnail">
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        title={label}
        style={{ height: `${height}px` }}
      />
      <figcaption className="djinn-soft">
        <span className="djinn-swatch djinn-mod-below" /> {trans.__('below')}{' '}
        <span className="djinn-swatch djinn-mod-above" />{' '}
        {[
          trans.__('above zero, full at %1', spellNumber(picture.limit, trans.__('not finite'))),
          ...made
        ].join(' \u00b7 ')}
      </figcaption>
    </figure>
  );
}

function draw(canvas: HTMLCanvasElement, { rows, columns, cells, limit }: Picture): void {
  const context = canvas.getContext('2d', { willReadFrequently: true });
  if (!context || rows === 0 || columns === 0) {
    return;
  }
  canvas.width = columns;
  canvas.height = rows;
  const [above, below] = ['--djinn-above', '--djinn-below'].map(name =>
    colourOf(canvas, context, name)
  );
  const image = context.createImageData(columns, rows);
  cells.forEach((value, index) => {
    const [red, green, blue] = value > 0 ? above : below;
    const strength = Math.min(1, Math.abs(value) / limit) ** 0.8;
    image.data.set([red, green, blue, Math.round(255 * strength)], 4 * index);
  });
  context.putImageData(image, 0, 0);
}

/** A colour of the theme as bytes; the canvas reads every spelling of CSS. */
function colourOf(
  canvas: HTMLCanvasElement,
  context: CanvasRenderingContext2D,
  name: string
): Uint8ClampedArray {
  context.fillStyle = getComputedStyle(canvas).getPropertyValue(name).trim() || '#000';
  context.fillRect(0, 0, 1, 1);
  const { data } = context.getImageData(0, 0, 1, 1);
  context.clearRect(0, 0, 1, 1);
  return data;
}
