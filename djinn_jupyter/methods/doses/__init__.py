"""Dose response: a metric over the strengths of an edit."""
