"""How maps are made into a bundle, and the record of it."""
