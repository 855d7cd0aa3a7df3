"""The channel to one engine: sockets, requests and their replies, events. Knows no session, no model."""
