"""Load a model and its tokenizer into memory from a name or a folder, or give the reason why it cannot be loaded."""
