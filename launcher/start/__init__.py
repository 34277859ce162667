"""Start attempts: launch, resume, automatic restarts, attach."""
