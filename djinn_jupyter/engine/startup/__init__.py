"""From a configuration to an engine that has passed the self-test on its model."""
