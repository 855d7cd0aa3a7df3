"""A feature's page: what it writes, features like it, and its examples in a collection."""
