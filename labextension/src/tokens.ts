/* What this extension offers to others. */

import { Token } from '@lumino/coreutils';

import { DjinnService } from './service';

export const IDjinn = new Token<DjinnService>(
  'djinn-jupyter:IDjinn',
  'Engines and sessions of Djinn: what they do, and the verbs to move them.'
);
