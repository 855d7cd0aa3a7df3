"""Interventions at a site of a pass: breakpoints and their conditions, edits, steering rules, watches."""
