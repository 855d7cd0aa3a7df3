"""One handler for each request, and the dispatcher that finds it."""
