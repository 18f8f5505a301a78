"""Shared models and sequences as they were before any probe saw them: checksums, and copies to put back."""

import zlib
from dataclasses import dataclass

from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch


@dataclass(frozen=True, eq=False)
class Original:
    """The state of a subject before probes saw it.

    Attributes:
        checksums: Those of every weight and sequence, and the number of hooks at every hook point.
        sequences: Copies of them.
    """

    checksums: dict[str, int]
    sequences: dict[str, Tensor]

    @staticmethod
    def of(decoder: HookedDecoder, batch: Batch) -> "Original":
        """The state of these models and sequences now."""
        copies = {name: tensor.clone() for name, tensor in sequences_of(batch).items()}
        return Original(checksums_of(decoder, batch), copies)

    def first_changed(self, decoder: HookedDecoder, batch: Batch) -> str | None:
        """Returns the name of a weight, sequence or hook point that is another now; None if none is."""
        now = checksums_of(decoder, batch)
        return next((name for name, value in now.items() if self.checksums[name] != value), None)


def sequences_of(batch: Batch) -> dict[str, Tensor]:
    """Returns the sequences of a batch by their names."""
    return {name: getattr(batch, name) for name in ("tokens", "history", "following")}


def checksums_of(decoder: HookedDecoder, batch: Batch) -> dict[str, int]:
    """Returns checksums of every weight and sequence, and the number of hooks at every hook point."""
    tensors = {**decoder.state_dict(), **sequences_of(batch)}
    sums = {name: zlib.crc32(tensor.detach().cpu().numpy().tobytes()) for name, tensor in tensors.items()}
    points = {name: one for name, one in decoder.named_modules() if isinstance(one, HookPoint)}
    return sums | {name: len(point.fwd_hooks) + len(point.bwd_hooks) for name, point in points.items()}
