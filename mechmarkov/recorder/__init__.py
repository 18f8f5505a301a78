"""`mm.Recorder`: keep checkpoints of a training loop that is not ours as a run file that grows.

A training must not stop for it: what goes wrong is a warning (`notices`). `schedule` says which steps are
kept, `growing_file` holds them on disk and in memory until they are one file.
"""

from mechmarkov.recorder.recorder import Recorder as Recorder
