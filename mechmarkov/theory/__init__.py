"""Closed forms and statistics: pure functions in numpy float64 and nats; no torch.

What models learn is held against these: the law of the next token from a part of the past, an array
`[batch, position, state]` that sums to one over states, and the losses that such laws have.
"""
