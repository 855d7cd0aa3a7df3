"""Editors: the Debug Adapter Protocol, and JupyterLab's native debugger panel."""
