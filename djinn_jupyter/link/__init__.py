"""This process's connection to an engine: found or started, spoken to, and waited for."""
