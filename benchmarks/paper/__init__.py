"""The tables of Gupta et al. (NeurIPS 2022), measured again on models and images that are at hand."""
