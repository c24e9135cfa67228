"""Maps from forward passes alone."""
