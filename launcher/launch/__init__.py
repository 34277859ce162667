"""Starting attempts: launch, resume, restart, attach."""
