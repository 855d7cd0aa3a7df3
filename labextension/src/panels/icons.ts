/* Icons that JupyterLab does not have. */

import { LabIcon } from '@jupyterlab/ui-components';

/** A stack of layers, the uppermost one whole. */
export const djinnIcon = new LabIcon({
  name: 'djinn-jupyter:djinn',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <path fill-rule="evenodd" d="M12 2.2 22 7.7 12 13.2 2 7.7zM12 5.5a2.2 2.2 0 1 0 0 4.4a2.2 2.2 0 1 0 0-4.4z"/>
    <path d="M2 11.2 12 16.7 22 11.2V13.6L12 19.1 2 13.6z"/>
    <path d="M2 15.6 12 21.1 22 15.6V18L12 23.5 2 18z"/>
  </g>
</svg>`
});

/** To an earlier stop. */
export const backIcon = new LabIcon({
  name: 'djinn-jupyter:back',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path d="M12.5 8c-2.65 0-5.05.99-6.9 2.6L2 7v9h9l-3.62-3.62A8.01 8.01 0 0 1 12.5 10c3.2 0 5.98 1.88 7.25 4.6l1.9-.8A10.02 10.02 0 0 0 12.5 8z"/>
    <circle cx="12.5" cy="18" r="2.2"/>
  </g>
</svg>`
});

/** Down from the device, which is the box above. */
export const swapOutIcon = new LabIcon({
  name: 'djinn-jupyter:swap-out',
  svgstr: swap('M11 12h2v5h3l-4 4.6L8 17h3z')
});

/** Up to the device. */
export const swapInIcon = new LabIcon({
  name: 'djinn-jupyter:swap-in',
  svgstr: swap('M11 21.6h2v-5h3L12 12l-4 4.6h3z')
});

function swap(arrow: string): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path fill-rule="evenodd" d="M5 2h14a1 1 0 0 1 1 1v6a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V3a1 1 0 0 1 1-1zm1 2v4h12V4z"/>
    <path d="${arrow}"/>
  </g>
</svg>`;
}
