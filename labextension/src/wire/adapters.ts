/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/** An adapter but for its tensors, which are those of the files in `folder`, of that `digest`. */
export interface AdapterIdentity {
  readonly name: string;
  readonly folder: string;
  readonly digest: string;
}

/**
 * An adapter: the number of `modules` that it changes, and the last words of their paths (`targets`). `sessions`
 * compute with it. `missing`: why it cannot be computed with now. `note`: what its files say besides, told where it
 * is added.
 */
export interface AdapterDescription {
  readonly name: string;
  readonly folder: string;
  readonly digest: string;
  readonly modules: number;
  readonly targets: readonly string[];
  readonly bytes_held: number;
  readonly sessions: readonly string[];
  readonly missing: string | null;
  readonly note: string | null;
}

/** Remove an adapter that no session computes with. */
export interface RemoveAdapter {
  readonly request: 'RemoveAdapter';
  readonly name: string;
}

/** Have a session that holds no line compute with an adapter, None for the model alone. */
export interface SetAdapter {
  readonly request: 'SetAdapter';
  readonly session: string;
  readonly adapter: string | null;
}

/** `existed`: it was there already, of the same files. */
export interface AdapterAdded {
  readonly reply: 'AdapterAdded';
  readonly adapter: AdapterDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
}

/** The adapters that the asker has added, by name. */
export interface Adapters {
  readonly reply: 'Adapters';
  readonly adapters: readonly AdapterDescription[];
  readonly not_kept: string | null;
}

export interface ListAdapters {
  readonly request: 'ListAdapters';
}
