"""The time of a resume, and the cost of a stop to a neighbour session."""
