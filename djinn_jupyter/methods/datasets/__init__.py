"""Collections, losses and splices: what runs over many prompts."""
