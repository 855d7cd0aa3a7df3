/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

export type ModuleKind = 'sae' | 'transcoder' | 'cross_layer_transcoder' | 'probe' | 'tuned_lens';

export type Activation = 'relu' | 'jumprelu' | 'topk' | 'gated';

export type Normalization = 'none' | 'layer_norm' | 'constant_norm_rescale';

export type ModuleDtype = 'float32' | 'float16' | 'bfloat16';

/**
 * The form of a module, computed in `dtype`. An `sae` or `transcoder` encodes x as act(norm(x) @ W_enc + b_enc),
 * with `subtracts_decoder_bias` of x - b_dec, and decodes to f @ W_dec + b_dec; `by_decoder_norm` measures features by
 * the length of their decoder rows. A `centered` module reads x minus its mean over the features; with `norm_folded` a
 * norm's output before its weight and bias; with `value_biases_folded` values of attention, or means of them, without
 * their biases. A transcoder with `skip` adds x @ W_skip.T. A `cross_layer_transcoder` is one layer of it: W_dec [F,
 * layers, D] writes to the MLPs from its own layer on; b_dec and with `skip` x @ W_skip, not transposed, write to its
 * own layer's MLP. With `encoder_rows` W_enc is [F, D]. A `probe` is x @ weight.T + bias, a `tuned_lens` adds that to
 * x. `k` belongs to `topk`. `trained_at` is the place that its files name, `written_at` the place to which a
 * transcoder writes according to them.
 */
export interface ModuleForm {
  readonly kind: 'sae' | 'transcoder' | 'cross_layer_transcoder' | 'probe' | 'tuned_lens';
  readonly dtype: 'float32' | 'float16' | 'bfloat16';
  readonly activation: 'relu' | 'jumprelu' | 'topk' | 'gated';
  readonly k: number | null;
  readonly subtracts_decoder_bias: boolean;
  readonly normalization: 'none' | 'layer_norm' | 'constant_norm_rescale';
  readonly by_decoder_norm: boolean;
  readonly skip: boolean;
  readonly centered: boolean;
  readonly norm_folded: boolean;
  readonly value_biases_folded: boolean;
  readonly encoder_rows: boolean;
  readonly trained_at: string | null;
  readonly written_at: string | null;
}

/**
 * An added module without its tensors, which come from the files in `folder`, with that `digest`. `at` is the point
 * that it reads; `inputs` and `features` are the widths before and after it.
 */
export interface ModuleIdentity {
  readonly name: string;
  readonly at: string;
  readonly form: ModuleForm;
  readonly inputs: number;
  readonly features: number;
  readonly folder: string;
  readonly digest: string;
  readonly error_term: boolean;
  readonly bytes_held: number;
}

/**
 * An added module: `site` is its own site (`sae.4`), `at` the point that it reads. `inputs` and `features` are the
 * widths before and after it. An edit of its values changes the point that it `writes`, for a cross-layer transcoder
 * also the points of later layers; `why_not_edited` is None where they can be edited. `missing`: why it cannot be
 * computed now. `note`: how its files disagree with `at`, or with the engine's model.
 */
export interface AddedModuleDescription {
  readonly name: string;
  readonly site: string;
  readonly at: string;
  readonly kind: 'sae' | 'transcoder' | 'cross_layer_transcoder' | 'probe' | 'tuned_lens';
  readonly activation: string;
  readonly inputs: number;
  readonly features: number;
  readonly folder: string;
  readonly digest: string;
  readonly bytes_held: number;
  readonly error_term: boolean;
  readonly writes: string | null;
  readonly why_not_edited: string | null;
  readonly missing: string | null;
  readonly note: string | null;
}

/** An adapter without its tensors, which come from the files in `folder`, with that `digest`. */
export interface AdapterIdentity {
  readonly name: string;
  readonly folder: string;
  readonly digest: string;
}

/**
 * An adapter: the number of `modules` that it changes, and the last words of their paths (`targets`). `sessions`
 * use it. `missing`: why it cannot be used now. `note`: other statements of its files, shown when it is added.
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

/** Remove an adapter that no session uses. */
export interface RemoveAdapter {
  readonly request: 'RemoveAdapter';
  readonly name: string;
}

/** Set the adapter of a session without tokens, None for the model alone. */
export interface SetAdapter {
  readonly request: 'SetAdapter';
  readonly session: string;
  readonly adapter: string | null;
}

/** `existed`: it was there already, with the same files. */
export interface AdapterAdded {
  readonly reply: 'AdapterAdded';
  readonly adapter: AdapterDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
}

/** The adapters that the caller has added, by name. */
export interface Adapters {
  readonly reply: 'Adapters';
  readonly adapters: readonly AdapterDescription[];
  readonly not_kept: string | null;
}

export interface ListAdapters {
  readonly request: 'ListAdapters';
}

/** Remove the module of that name: at `layer`, or everywhere. */
export interface RemoveModule {
  readonly request: 'RemoveModule';
  readonly name: string;
  readonly layer?: number | null;
}

/** `existed`: it was there already, with the same files. */
export interface ModuleAdded {
  readonly reply: 'ModuleAdded';
  readonly module: AddedModuleDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
}

/** The modules that the caller has added, in order of their sites. */
export interface AddedModules {
  readonly reply: 'AddedModules';
  readonly modules: readonly AddedModuleDescription[];
  readonly not_kept: string | null;
}

export interface ListAddedModules {
  readonly request: 'ListAddedModules';
}
