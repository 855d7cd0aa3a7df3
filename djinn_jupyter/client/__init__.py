"""The Python client: find, start and attach to engines, and send them requests. Imports neither torch nor IPython."""
