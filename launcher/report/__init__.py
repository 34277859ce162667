"""An HTML page about one run or two.

`make` contacts the hosts and writes the file. All other modules are pure.
"""
