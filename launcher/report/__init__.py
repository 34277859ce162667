"""One HTML page about a run.

`numbers` reads the trainer's metrics, `curves` draws them and `page` writes the HTML; all three are
pure. `making` asks the hosts and writes the file.
"""
