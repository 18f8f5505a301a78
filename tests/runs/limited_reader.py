"""Reads files in a process of its own with little memory: a request a line in, what was refused a line out.

A limit on the address space belongs to a whole process. In a test's own process it would also bind whatever
runs beside the reader, such as the run-time checks of types.
"""

import json
import sys

from run_files import memory_limit

from mechmarkov.runs import RunFileError, load
from mechmarkov.safe import file as safe_file

READERS = {"file": safe_file.read, "run": load}


def main() -> None:
    for line in sys.stdin:
        reader, path, extra_bytes = json.loads(line)
        refused = None
        try:
            with memory_limit(extra_bytes):
                READERS[reader](path)
        except RunFileError as error:
            refused = str(error)
        print(json.dumps(refused), flush=True)


if __name__ == "__main__":
    main()
