"""What the tests of sweeps share: a sweep of seconds."""

TINY = {
    "name": "tiny",
    "recipe": "binary-p05-q08-tied",
    "seeds": 2,
    "set": {"model.n_ctx": 8, "data.batch": 4, "steps": 4, "checkpoints": []},
    "grid": {"source.p": [0.2, 0.5], "source.q": [0.2, 0.8]},
    "phase": {"x": "source.p", "y": "source.q"},
}


def tiny(**changes):
    """Four points of two seeds: eight members."""
    return TINY | changes


def two_points(**changes):
    """Two points of two seeds: four members."""
    return tiny(grid={"source.p": [0.2, 0.5]}, phase=None) | changes
