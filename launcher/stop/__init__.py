"""Stop runs, and verify that nothing is left."""
