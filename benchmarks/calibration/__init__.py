"""How well the verdict tells honest heatmaps from fakes and from damaged ones."""
