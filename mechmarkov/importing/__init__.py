"""Models of other programs become a HookedDecoder with the same logits.

A layout is a pair: how its weights are recognised by name and shape, and how each becomes one of
HookedTransformer's, by a transposition, a cut and a split into heads. Every field of the config is told by a
shape, by a setting next to the weights or by the caller; what a decoder cannot express is refused by name.
"""
