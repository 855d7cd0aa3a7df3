"""Added modules (SAEs, transcoders, probes, tuned lenses) and adapters: their files, arithmetic and training."""
