"""`python -m pbgeval` is the command `kgeval-dist`."""

from pbgeval.cluster.signals import ended_at_once


def main() -> None:
    """Run the command; signals end it with status 75 from here on."""
    with ended_at_once():
        from pbgeval.cli import main as command

        command()


if __name__ == "__main__":
    main()
