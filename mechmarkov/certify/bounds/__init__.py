"""How far apart a model's odds can be: support functions of heads, what stands behind them, rounding.

A head's output in a direction f is at most the root λ of Σⱼ max_y wⱼ(y) (fⱼ(y) − λ) = 0
(`reading.Reading`). A `ball.Ball` is a number with the radius of every evaluation in floating point, an
`affine.Affine` one with symbols.
"""
