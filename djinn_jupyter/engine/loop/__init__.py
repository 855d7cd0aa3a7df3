"""The engine's loop: mailbox, dispatch, turns, replies, and the handlers of the core's requests."""
