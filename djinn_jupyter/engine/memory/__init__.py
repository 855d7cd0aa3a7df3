"""Where bytes are: pages behind the transformers `Cache`, copies in the tiers, weights; and the budget they share."""
