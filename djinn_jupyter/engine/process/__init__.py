"""The engine as a process: its sockets, its clients, its entry in the registry, its end."""
