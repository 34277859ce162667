"""The console and the live panel."""
