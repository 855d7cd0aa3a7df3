"""From a name or a folder to a model in memory and its tokenizer, or to the reason why not."""
