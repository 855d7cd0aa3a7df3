"""Code of other tools on a Djinn engine. Each is imported when asked for, and needs its tool beside."""
