/* What this extension offers to others. */

import { Token } from '@lumino/coreutils';

import { DjinnService } from './service';
import { Sidebar } from './sidebar';

export const IDjinn = new Token<DjinnService>(
  'djinn-jupyter:IDjinn',
  'Engines and sessions of Djinn: what they do, and the verbs to move them.'
);

export const ISidebar = new Token<Sidebar>('djinn-jupyter:ISidebar', "Djinn's panels.");
