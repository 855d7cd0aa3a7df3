"""Modules that a client has added: their tensors checked, and the arithmetic that reads a value and puts it back."""
