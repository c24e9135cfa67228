"""Insertion areas of the same heatmaps by auditkit and by its peers, on the CPU, each in its own environment."""
