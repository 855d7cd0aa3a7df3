"""The entropy of every head's attention at a stop."""
