"""The original's sentences, each answered by the result files of our runs: a table of claims, and their verdicts."""

from typing import Final

RUNS: Final = "runs.json"
"""The runs in a folder that have ended, with their verdicts, by which a run that was broken off goes on."""
