"""Modules trained on collected activations, in a process of its own that ends with the training. Knows no engine.

In an engine a training would take turns and device memory, and in a kernel it would load torch. In its own process the
number of threads and the algorithms are fixed, so that the same call has the same bits.
"""
