"""Memory: pages behind the transformers `Cache`, copies in the tiers, weights, and the budget that they share."""
