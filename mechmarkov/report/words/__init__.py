"""The only English about results: a grammar of claims (`mechmarkov.claims.claim`).

`phrases.PHRASES` has a sentence for each relation, `conditions.CONDITIONS` one for each premise.
"""
