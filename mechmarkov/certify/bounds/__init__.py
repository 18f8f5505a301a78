"""How far apart a model's odds can be: support functions of heads, what stands behind them, rounding."""
