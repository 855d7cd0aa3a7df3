"""A debug adapter: the Debug Adapter Protocol on one side, the client's verbs on the other. A session is a thread."""
