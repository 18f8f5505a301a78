"""Models in memory, of classes that we do not know: read, converted, and compared with their conversion.

A class may say nothing of what it computes, so it is measured: for the same tokens the logits z of the model
and z' of its conversion must be as close as rounding, `|z - z'| <= 1e-4 max(1, |z|)`. The model is left as it
was, to the last bit.
"""
