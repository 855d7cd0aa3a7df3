"""A text as a whole: measures of each token."""
