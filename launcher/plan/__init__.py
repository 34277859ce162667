"""The plan: everything that a launch will do, as one frozen value."""
