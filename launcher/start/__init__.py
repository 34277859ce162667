"""Starting attempts: launch, resume, automatic restarts, and coming back to them."""
