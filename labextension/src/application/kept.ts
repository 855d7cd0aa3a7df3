/* The graphs in the outputs of a notebook. After a reload of the page, cells out of sight are not drawn; this finds
   their graphs. */

import { GRAPH_TYPE, asGraph } from '../models/graph';
import { IDjinn } from '../tokens';

/** The part of JupyterLab's notebook model in use; another kind of document has no cells. */
interface INotebook {
  readonly cells?: Iterable<{ readonly outputs?: IOutputs }>;
}

interface IOutputs {
  readonly length: number;
  get(index: number): { readonly data: { readonly [type: string]: unknown } };
}

/** Add the graphs in a notebook's outputs to the model, in the order of the cells. */
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
