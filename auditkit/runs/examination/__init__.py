"""Finds out what a model relies on: parts of images are exchanged, and it is seen whose label the model follows."""
