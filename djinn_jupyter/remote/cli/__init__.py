"""Commands on keys, persons, hubs and clusters."""
