"""The tables of `docs/bench.md`, measured: every method, every case, eight seeds.

python -m benchmarks.methods        # 11 minutes of processor time, without devinterp
"""

import time
from pathlib import Path

from mechmarkov.bench import Benchmark, run
from mechmarkov.bench.page import as_markdown

PAGE = Path(__file__).parents[1] / "docs" / "bench.md"
BEGIN, END = "<!-- measured by benchmarks/methods.py -->", "<!-- end of what is measured -->"


def with_tables(page: str, found: Benchmark) -> str:
    """The page with these tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{as_markdown(found)}{END}{after}"


if __name__ == "__main__":
    found = run(progress=print)
    PAGE.write_text(with_tables(PAGE.read_text(), found))
    print(f"{time.process_time():.0f} seconds of processor time")
