"""A run's folder: what is kept in it, and in which form."""
