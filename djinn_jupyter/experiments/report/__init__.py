"""report.html and report.md: drawn from the result files alone, so that nothing is in them that no file holds."""

from djinn_jupyter.experiments.report.writing import write

__all__ = ["write"]
