"""Collections: values of many prompts, written to files shard by shard. Answers no request itself."""
