"""Bounds that hold for every sequence: how far a program is from its model at most, and a proof to check.

`certify` compares a trained softmax transformer with a program over all sequences of the source, and names
the worst one that was seen. `verify` checks a proof of it, and shares no code with the search.
"""

from mechmarkov.certify.bounds.ball import EXACT, FLOAT32
from mechmarkov.certify.certificate import Certificate, certify
from mechmarkov.certify.proof import load_proof, proof_of, save_proof, verify

__all__ = ["EXACT", "FLOAT32", "Certificate", "certify", "load_proof", "proof_of", "save_proof", "verify"]
