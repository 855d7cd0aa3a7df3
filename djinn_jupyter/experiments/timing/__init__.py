"""How long a resume takes, and what a stop costs a neighbour."""
