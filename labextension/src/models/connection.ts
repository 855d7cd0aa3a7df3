/* The state of the connection to the Jupyter server. */

/**
 * `absent`: the server has no Djinn extension; `forbidden`: it refuses this user; `lost`: the next attempt follows
 * after `seconds`; `differs`: the server, of version `version`, has other messages than this page; `spoke`: this page
 * has connected to another server before.
 */
export type Connection =
  | { readonly kind: 'connecting' }
  | { readonly kind: 'open' }
  | { readonly kind: 'lost'; readonly seconds: number }
  | { readonly kind: 'absent' }
  | { readonly kind: 'forbidden' }
  | { readonly kind: 'differs'; readonly version: string; readonly spoke: boolean };
