"""`python -m pbgeval` is the command `kgeval-dist`."""

from pbgeval.cli import main

if __name__ == "__main__":
    main()
