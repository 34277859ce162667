"""The plan of an attempt: everything that a launch will do, as one immutable value."""
