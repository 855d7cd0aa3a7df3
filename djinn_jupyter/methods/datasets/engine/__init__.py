"""Collections: values of many prompts, written to files shard by shard."""
