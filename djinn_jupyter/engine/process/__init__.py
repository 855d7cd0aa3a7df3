"""The engine as a process: its sockets, its clients, its registry entry, its shutdown."""
