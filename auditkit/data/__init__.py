"""Images and heatmaps: files in, arrays out."""
