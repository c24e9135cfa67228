"""Evidence that travels: signatures, commitments made in advance, archives."""
