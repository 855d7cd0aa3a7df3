"""What the engine does for each request: a method a verb, in classes that are given the parts they work with.

A verb returns its reply, or a generator of steps where forward passes have to be run first. It checks everything before
it changes anything: a verb that raises has changed nothing.
"""
