"""`python -m headway_cli` is `headway`."""

from headway_cli.main import main

if __name__ == "__main__":
    main()
