"""Stop runs, and prove that nothing is left."""
