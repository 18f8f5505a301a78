"""Orbits and the commutant against the whole group, written out."""

from itertools import permutations

import numpy as np
import pytest

from mechmarkov.sources import Chain, Circle
from mechmarkov.theory.symmetry import commutant_share, orbit_mean, orbitals, orbits

DIHEDRAL = Circle(n_states=5, p=0.5)
CYCLIC = Circle(n_states=5, p=0.8)
PAIRS = Chain([[0.1, 0.3, 0.6], [0.3, 0.1, 0.6], [0.25, 0.25, 0.5]])  # 0 and 1 are alike


@pytest.mark.parametrize("source", [DIHEDRAL, CYCLIC, PAIRS], ids=["dihedral", "cyclic", "swap"])
def test_orbitals_are_what_all_elements_of_the_group_reach(source):
    n = source.n_states
    found = orbitals(source.automorphism_generators(), n)
    for i, j in np.ndindex(n, n):
        reached = {(g[i], g[j]) for g in source.automorphisms()}
        assert {tuple(map(int, pair)) for pair in np.argwhere(found == found[i, j])} == reached


@pytest.mark.parametrize("source", [DIHEDRAL, CYCLIC, PAIRS], ids=["dihedral", "cyclic", "swap"])
def test_the_commutant_is_the_mean_over_the_group(source):
    n = source.n_states
    table = np.random.default_rng(0).normal(size=(2, n, n))
    group = [list(g) for g in source.automorphisms()]
    mean = np.mean([table[:, g][:, :, g] for g in group], axis=0)
    orbital = orbitals(source.automorphism_generators(), n)
    assert orbit_mean(table.reshape(2, -1), orbital.ravel()).reshape(2, n, n) == pytest.approx(mean)
    share = (mean**2).sum((1, 2)) / (table**2).sum((1, 2))
    assert commutant_share(table, orbital) == pytest.approx(share)
    assert commutant_share(source.P, orbital) == pytest.approx(1)


def test_a_zero_table_has_no_share_and_no_generators_leave_every_point_alone():
    assert np.isnan(commutant_share(np.zeros((2, 2)), orbitals([(1, 0)], 2)))
    assert orbits([], 3).tolist() == [0, 1, 2]
    assert commutant_share(np.array([[0.0, 1.0], [-1.0, 0.0]]), orbitals([(1, 0)], 2)) == 0
    whole = orbitals(list(permutations(range(4))), 4)
    assert len(np.unique(whole)) == 2  # the diagonal and the rest
