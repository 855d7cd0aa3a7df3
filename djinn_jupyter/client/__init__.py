"""The verbs, for a person's code: find, start and attach to engines, and speak with them. No torch, no IPython."""
