"""Experimental: JupyterLab's own debugger shows a stopped forward pass. Off until `%djinn_debugger on`, refused with
versions of ipykernel that it was not tested with, and imported by that magic alone: it stands in the place of a private
method of the kernel (`kernel_debugger`), which another version may do without.

Sessions and numbers are those of `djinn_jupyter.dap`. Ours begin where Python's debugger never comes; ipykernel's
debugger answers all else.
"""
