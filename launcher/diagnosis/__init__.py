"""Pure functions that turn the evidence about a failed attempt into its first failure."""
