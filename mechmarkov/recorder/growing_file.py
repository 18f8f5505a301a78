"""A run file that grows a checkpoint at a time, with what of it is in memory."""

from dataclasses import replace
from pathlib import Path

from mechmarkov.runs import growth
from mechmarkov.runs.loading import join_recording, load, load_file
from mechmarkov.runs.run import Run
from mechmarkov.utils.exits import is_by_signal

MAX_UNMERGED_BYTES = 256 << 20


class GrowingFile:
    """A run file to which checkpoints are added while a training goes on.

    A checkpoint is written to a file of its own next to it, and all are merged when more wait than the file
    holds (`mechmarkov.runs.growth`). Until then they stay in memory, up to 256 MB: they are not read again,
    which takes longer than converting, and a full disk loses none.

    Args:
        path: The run file.

    Example:
        >>> import tempfile
        >>> import mechmarkov as mm
        >>> config = mm.DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> model, source = mm.HookedDecoder(config), mm.Binary(p=0.5, q=0.8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = GrowingFile(Path(folder) / "run.pt")
        ...     for step in (0, 1, 2):
        ...         file.add(step, mm.Run.from_model(model, source=source, step=step))
        ...     file.merge()
        ...     mm.load(file.path).steps.tolist()
        [0, 1, 2]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = 0  # checkpoints in the file itself
        self._memory: dict[int, Run] = {}  # checkpoints by step, not in the file yet

    def exists(self) -> bool:
        """Returns whether there is a file, or a checkpoint that waits."""
        return self.path.exists() or bool(growth.waiting(self.path))

    def add(self, step: int, run: Run) -> None:
        """Write a checkpoint and those that could not be written before; merge if more wait than it holds.

        Raises:
            OSError: The disk does not take it; it stays in memory.
            RunFileError: The same, in one line.
        """
        n_bytes = 4 * sum(value.numel() for value in run.states.values())
        if (len(self._memory) + 1) * n_bytes <= MAX_UNMERGED_BYTES:
            self._memory[step] = run
        growth.folder_of(self.path).mkdir(parents=True, exist_ok=True)
        written = growth.waiting(self.path)
        for one, checkpoint in {**self._memory, step: run}.items():
            if one not in written or not written[one].is_file():  # a folder of that name is none of ours
                checkpoint.save(growth.checkpoint_path(self.path, one))
        if len(growth.waiting(self.path)) > self._held:
            self.merge()

    def merge(self) -> None:
        """Write one file of all checkpoints, those that wait next to it and those in memory."""
        if self._memory or growth.waiting(self.path):
            self.replace(self.whole())

    def replace(self, run: Run) -> None:
        """Make a run the whole content; what waits is removed."""
        run.save(self.path)
        self._held, self._memory = run.n_steps, {}
        growth.remove(self.path)

    def drop_after(self, last: int) -> None:
        """Drop the checkpoints of steps after `last`."""
        run = load(self.path)
        early = run.steps <= last
        if early.any():
            states = {name: x if len(x) == 1 else x[early] for name, x in run.states.items()}
            self.replace(replace(run, steps=run.steps[early], states=states))
        else:
            self.path.unlink()
            growth.remove(self.path)
            self._held, self._memory = 0, {}

    def whole(self) -> Run:
        """Returns a run of all checkpoints; those in memory are not read again.

        Raises:
            RunFileError: A file cannot be read.
        """
        if not set(growth.waiting(self.path)) <= set(self._memory):
            run = load(self.path)
            others = [one for step, one in self._memory.items() if step not in run.steps.tolist()]
            return join_recording([run, *others]) if others else run
        merged = [load_file(self.path)] if self._held else []
        return join_recording([*merged, *self._memory.values()])

    def rest(self) -> Run | None:
        """Returns a run of all checkpoints that can be had, whatever the disk gives back, or None."""
        rest = list(self._memory.values())
        for read in (
            self.whole,
            lambda: load(self.path),
            lambda: join_recording([load_file(self.path), *rest]),  # where one that waits cannot be read
            lambda: join_recording(rest),
        ):
            try:
                return read()
            except Exception as error:  # whatever a disk gives back
                if is_by_signal(error):
                    raise
                continue
        return None
