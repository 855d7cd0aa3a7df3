"""The original's experiment 3: stop, inspect, resume, steer, and serve another request meanwhile."""
