"""The bill of materials follows the constraints: a bump without `make sbom` is told."""

import json
from importlib.metadata import version

from packaging.utils import canonicalize_name
from packaging.version import Version
from sbom import BILL, needed, pinned


def test_the_bill_names_what_the_package_needs_at_the_pinned_versions():
    bill = json.loads(BILL.read_text("utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "mechmarkov")
    assert {canonicalize_name(one["name"]): one["version"] for one in bill["components"]} == needed()
    assert all(one["purl"].startswith("pkg:pypi/") for one in bill["components"])


def test_what_is_needed_is_found_through_what_is_needed():
    found = needed()
    assert {"torch", "numpy", "pydantic", "pydantic-core", "markupsafe"} <= found.keys()
    assert (
        not {"pytest", "ruff", "hypothesis", "ray", "selenium", "numba", "llvmlite"} & found.keys()
    )  # of extras
    assert found.items() <= pinned().items()
    assert Version(version("numpy")) >= Version("1.26")
