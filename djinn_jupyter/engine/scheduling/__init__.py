"""Whose turn it is: the mail, the jobs, and those that wait."""
