"""Closed forms: pure functions of `P` and tokens, in numpy float64 and nats.

- `predictors`: the exact laws of the next token that a model may imitate.
- `kernel`: a value circuit compared with the chain.
- `first_step`: the first gradient of the walk model, from zero weights.
- `reduced_walk`: the whole gradient descent of the walk model in `K + N + 1` numbers.
"""
