"""The tests are collected where the libraries that they need are: `make one-quantized` installs them."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("gguf") else ["test_kinds.py"]
