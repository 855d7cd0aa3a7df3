"""The logit lens, as a card."""
