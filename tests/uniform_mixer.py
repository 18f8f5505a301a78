"""A mixer without attention weights, for the tests of what needs them and what does not."""

import torch

from mechmarkov.models.mixer import Mixer


class Uniform(Mixer, name="uniform"):
    """Each head averages its values over all positions so far, and has no scores to say so."""

    inputs = ("V",)
    has_attention_weights = False

    def mix(self, query_input, key_input, value_input):
        v = self.project("V", value_input)
        count = torch.arange(1, v.shape[-3] + 1, dtype=v.dtype)
        return v.cumsum(-3) / count[:, None, None]
