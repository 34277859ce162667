"""Why an attempt failed: pure functions that turn the evidence into the first failure."""
