"""The plan of an attempt: everything a launch will do, as one frozen value that can be printed."""
