"""Collections, losses and splices: methods that run over many prompts."""
