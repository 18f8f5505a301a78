"""`mm.Recorder`: keep checkpoints of a training loop that is not ours as a run file that grows."""

from mechmarkov.recorder.recorder import Recorder as Recorder
