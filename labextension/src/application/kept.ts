/* The graphs in the outputs of a notebook: after a reload of the page those of cells out of sight are not drawn, and are
   found here. */

import { GRAPH_TYPE, asGraph } from '../models/graph';
import { IDjinn } from '../tokens';

/** The part of JupyterLab's notebook model that is read; a document of another kind has no cells. */
interface INotebook {
  readonly cells?: Iterable<{ readonly outputs?: IOutputs }>;
}

interface IOutputs {
  readonly length: number;
  get(index: number): { readonly data: { readonly [type: string]: unknown } };
}

/** Have the model know the graphs that a notebook has in its outputs, the last cell's last. */
export function findGraphs(notebook: unknown, { model }: IDjinn): void {
  for (const { outputs } of (notebook as INotebook).cells ?? []) {
    for (let index = 0; index < (outputs?.length ?? 0); index += 1) {
      const graph = asGraph(outputs?.get(index).data[GRAPH_TYPE] ?? null);
      if (graph !== null && !model.isDisposed) {
        model.showGraph(graph);
      }
    }
  }
}
