"""The engine's side of persons, of connections that may be lost, and of journals and moves that machines share."""
