"""The machine under the engine: devices, host memory, forcing files to disk, faults. Knows no model and no session."""
