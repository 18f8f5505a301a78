"""The only English about results: a grammar of claims (`mechmarkov.claims.claim`)."""
