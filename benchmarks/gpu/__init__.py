"""All measurements of one GPU, in steps: `make gpu`. Every step also runs on the CPU, in a small profile.

None of it has run on a GPU yet.
"""
