"""report.html and report.md, written from the result files alone: they contain nothing that is not in a file."""

from djinn_evaluation.report.writing import write

__all__ = ["write"]
