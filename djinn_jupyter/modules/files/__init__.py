"""The files of modules and adapters, read and written without torch."""
