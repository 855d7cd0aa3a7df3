"""A text as a whole: measures of each token, and the lens over all of them."""
