"""One HTML page about a run, or two.

`making` contacts the hosts and writes the file. All other modules are pure.
"""
