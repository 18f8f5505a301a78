"""`python -m mechmarkov`, the command line."""

import sys
from importlib import import_module

from mechmarkov.utils.shadowed import explaining

if __name__ == "__main__":
    try:
        with explaining():  # the command line imports other packages too
            main = import_module("mechmarkov.cli").main
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    main()
