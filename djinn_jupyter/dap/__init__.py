"""A debug adapter between the Debug Adapter Protocol and the Python client. A session is shown as a thread."""
