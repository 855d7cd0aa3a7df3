"""The machine under the engine: devices, host memory, files forced to disk, faults. Knows no model and no session."""
