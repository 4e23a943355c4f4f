"""What a template gives the children that it forks."""

from __future__ import annotations

from engines.process.template import paths_of_code


def test_code_does_not_import_the_studio_from_its_checkout() -> None:
    paths = ["/checkout", "/lib", "/site-packages"]
    packages = ["/site-packages"]
    assert paths_of_code(paths, packages, "/checkout") == ["/lib", "/site-packages"]
    # Where the studio was installed, its folder is the one of all packages.
    assert paths_of_code(paths, packages, "/site-packages") == paths
