"""Parts that several methods share: prompts and metrics, and work that is spread over engines."""
