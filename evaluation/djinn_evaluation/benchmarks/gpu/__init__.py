"""All measurements of one GPU, in steps: `make gpu`. Every step also runs on the CPU, in a small profile.

What has run on one, and at which size, is in `evaluation/results/benchmarks/<card>/README.md`.
"""
