"""Calls, and the results that they return."""
