"""What ours is compared with: programs of their own, each in its own process, that know nothing of Djinn."""
