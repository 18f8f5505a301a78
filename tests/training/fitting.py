"""Training of one recipe's seeds, as most tests want it."""

from mechmarkov.training.members import members_of
from mechmarkov.training.trainer import fit as fit_members


def fit(recipe, seeds, **options):
    return fit_members(members_of(recipe, seeds), **options)
