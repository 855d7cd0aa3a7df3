"""The messages between client and engine: sites, nouns, requests, replies, events and their encoding.

Needs msgspec and the standard library only; knows neither torch, nor numpy, nor sockets.
"""
