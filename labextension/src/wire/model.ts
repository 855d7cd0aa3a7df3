/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ModuleDescription,
} from './nouns';

export interface Modules {
  readonly reply: 'Modules';
  readonly modules: readonly ModuleDescription[];
  readonly not_kept: string | null;
}

export interface Tokenized {
  readonly reply: 'Tokenized';
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly text: string;
  readonly not_kept: string | null;
}

export interface ListModules {
  readonly request: 'ListModules';
}

export interface Tokenize {
  readonly request: 'Tokenize';
  readonly text: string;
  readonly chat?: boolean;
}

export interface Detokenize {
  readonly request: 'Detokenize';
  readonly tokens: readonly number[];
}
