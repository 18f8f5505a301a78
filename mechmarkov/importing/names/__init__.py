r"""Models with names of their own: a table says which weight is which of HookedTransformer's.

A line of it maps a regular expression to a name, `"h\.(\d+)\.wq": "blocks.\1.attn.W_Q"`, with how the weight
is turned, cut and folded by heads.
"""
