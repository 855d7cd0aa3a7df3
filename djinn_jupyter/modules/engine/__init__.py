"""The engine's side of added modules and adapters."""
