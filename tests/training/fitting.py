"""Training of one recipe's seeds, as most tests want it."""

from mechmarkov.training.fit import fit as fit_members
from mechmarkov.training.fleet import members_of


def fit(recipe, seeds, **options):
    return fit_members(members_of(recipe, seeds), **options)
