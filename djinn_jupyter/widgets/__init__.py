"""The views: pure functions from values to text, static HTML and figures.

Knows the nouns of the wire; knows no sockets, no engine and no IPython. Every view is readable without colours,
without styles and in a saved notebook without a kernel. plotly is imported when a figure is first drawn.
"""
