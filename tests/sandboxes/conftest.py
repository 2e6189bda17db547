"""A folder for what the tests of sandboxes make once."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def sandbox_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.MonkeyPatch().setenv("PYTEST_SANDBOX_FOLDER", str(tmp_path_factory.mktemp("sandboxes")))
