/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/**
 * The model and the machine that computed a result. Where two differ only in the model's name and revision, the
 * same request gives the same bits, for cells that are computed alone.
 */
export interface Provenance {
  readonly model: string;
  readonly revision: string | null;
  readonly architecture: string;
  readonly configuration: string;
  readonly weights: string;
  readonly dtype: string;
  readonly attention: string;
  readonly device: string;
  readonly processor: string;
  readonly threads: number;
  readonly torch: string;
  readonly transformers: string;
  readonly djinn: string;
  readonly tensor_parallel: number;
  readonly quantization?: string;
}
