"""Heatmaps as pictures."""
