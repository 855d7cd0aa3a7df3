"""Where torch lives: one model, its sessions, its memory. Usable without Jupyter and without sockets."""
