"""The Python client: the API (load, engine, session, stops, edits) over `connection` and `engines`. No torch."""
