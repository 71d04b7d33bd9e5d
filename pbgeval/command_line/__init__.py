"""Parts of the command line that `cli.py` puts together."""
