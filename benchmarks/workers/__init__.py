"""The other sides of the comparisons, each in a process of its own that is asked over its standard input."""
