"""`python -m mechmarkov`, the command line."""

from mechmarkov.cli import main

if __name__ == "__main__":
    main()
