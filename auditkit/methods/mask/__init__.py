"""Masks learned by gradient descent."""
