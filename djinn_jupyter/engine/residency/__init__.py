"""The choice of the sessions on the device: eviction and return."""
