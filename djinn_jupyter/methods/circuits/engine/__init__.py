"""Lines in which edges carry the values of another line: single edges, and circuits of them."""
