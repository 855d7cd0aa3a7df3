"""Scheduling: the mailbox, the jobs in rotation, and the queued requests."""
