"""The handlers of the core's requests, and what methods are given to handle theirs."""
