"""Why an attempt failed: pure functions from what was seen to the first failure."""
