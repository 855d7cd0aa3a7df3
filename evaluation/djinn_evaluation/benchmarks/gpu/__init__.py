"""All measurements of one GPU, in steps: `make gpu`. Every step also runs on the CPU, in a small profile.

The runs so far, with their sizes, are in `evaluation/results/benchmarks/<card>/README.md`.
"""
