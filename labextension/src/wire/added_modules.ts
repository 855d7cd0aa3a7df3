/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  AddedModuleDescription,
} from './module_form';

/** Remove the module of that name: at `layer`, or at all. */
export interface RemoveModule {
  readonly request: 'RemoveModule';
  readonly name: string;
  readonly layer?: number | null;
}

/** `existed`: it was there already, of the same files. */
export interface ModuleAdded {
  readonly reply: 'ModuleAdded';
  readonly module: AddedModuleDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
}

/** The modules that the asker has added, in order of their sites. */
export interface AddedModules {
  readonly reply: 'AddedModules';
  readonly modules: readonly AddedModuleDescription[];
  readonly not_kept: string | null;
}

export interface ListAddedModules {
  readonly request: 'ListAddedModules';
}
