"""Parts that several methods share: lines and metrics, and work that is spread over engines."""
