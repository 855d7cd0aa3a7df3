"""Djinn's service of a JupyterHub: it admits the keys of the hub's users for as long as their servers live."""
