"""Mutated models, cards, policies, bundles and images, and what the command does with them."""
