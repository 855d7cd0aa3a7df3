"""Modules trained on collected activations, in a process of its own that ends with the training. Knows no engine.

An engine would share its turns and its device's memory with a training, and a kernel would load torch; here the number
of threads and the algorithms are fixed, so that the same call has the same bits.
"""
