"""The baselines that Djinn is compared with: separate programs, each in its own process, that know nothing of Djinn."""
