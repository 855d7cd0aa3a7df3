"""The other sides of the comparisons, each in a process of its own that reads requests from its standard input."""
