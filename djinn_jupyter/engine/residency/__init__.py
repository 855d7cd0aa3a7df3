"""Where the sessions' bytes are: on the device, on the host, on disk, or under way; and who has to leave."""
