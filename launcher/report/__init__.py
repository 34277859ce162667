"""An HTML page about one run, or one that compares two.

`make` contacts the hosts and writes the file. All other modules are pure.
"""
