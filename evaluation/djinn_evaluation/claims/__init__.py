"""The original's sentences, each answered by the result files of our runs: a table of claims, and their verdicts."""
