"""Pages of keys and values behind the transformers `Cache`: slab, page tables, the paged cache."""
