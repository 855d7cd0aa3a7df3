"""The engine, the part that uses torch: one model, its sessions, its memory. Works without Jupyter or sockets."""
