"""One handler for each request, and the dispatcher that calls it."""
