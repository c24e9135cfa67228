"""What can be said about a model file alone."""
