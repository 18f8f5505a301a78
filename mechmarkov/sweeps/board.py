"""Progress in the terminal: a line for each fleet that is done, over a bar."""

import sys
from collections.abc import Callable, Sequence

from tqdm import tqdm

from mechmarkov.sweeps.tasks import Done, Task
from mechmarkov.utils.progress import watched

HEAD = f"{'fleet':>9} {'runs':>6} {'diverged':>9} {'stuck':>11} {'s':>8} {'all runs':>13}"


class Board:
    """A table that grows while a sweep runs; silent unless it is told to show itself.

    Args:
        tasks: What will be done.
        show: Whether to draw it; by default in a terminal or a notebook.
    """

    def __init__(self, tasks: Sequence[Task], show: bool | None = None) -> None:
        self.show = watched() if show is None else show
        self.n_tasks, self.n_runs = len(tasks), sum(len(task.items) for task in tasks)
        self.done_tasks = self.done_runs = 0
        self.part = 0.0
        self.bar = tqdm(total=self.n_runs, unit="run", disable=not self.show, leave=False)
        if tasks:
            self._write(HEAD)

    def progress_of(self, task: Task) -> Callable[[int, int], None] | None:
        """Returns what a fleet calls after every step: its share of the runs moves the bar, if shown."""
        return (lambda step, steps: self.moved(len(task.items) * step / steps)) if self.show else None

    def moved(self, runs: float) -> None:
        """Set how many runs' worth of the unfinished fleets is trained."""
        self.part = runs
        self._draw()

    def done(self, task: Task, done: Done) -> None:
        """A line for a task that has ended."""
        self.done_tasks += 1
        self.done_runs += len(task.items)
        self.part = 0.0
        stuck = [row["stuck"]["value"] for row in done.rows if row["stuck"]]
        known = [value for value in stuck if value is not None]
        diverged = sum(row["status"] == "diverged" for row in done.rows)
        seconds = sum(row["seconds"] for row in done.rows)
        self._write(
            f"{f'{self.done_tasks}/{self.n_tasks}':>9} {len(done.rows):>6} {diverged:>9} "
            f"{f'{sum(known)} of {len(known)}':>11} {seconds:>8.1f} {f'{self.done_runs}/{self.n_runs}':>13}"
        )
        self._draw()

    def close(self) -> None:
        """Take the bar away; the table stays."""
        self.bar.close()

    def _draw(self) -> None:
        self.bar.n = round(min(self.done_runs + self.part, self.n_runs), 1)
        self.bar.refresh() if self.part == 0 else self.bar.update(0)

    def _write(self, line: str) -> None:
        if self.show:
            self.bar.write(line, file=sys.stderr)
