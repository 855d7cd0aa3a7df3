"""One model on several ranks: each layer's matrices are split among processes, which compute a layer together."""
