"""Follow a live attempt, and show its logs."""
