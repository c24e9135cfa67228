"""Rows in, results out."""
