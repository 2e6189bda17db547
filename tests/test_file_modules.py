"""Modules that are loaded from a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trio_envserve.file_modules import module_of_file


@pytest.mark.parametrize("also", ["", "import sys\ndel sys.modules[__name__]\n"])
def test_module_that_takes_itself_away_and_raises_failed_with_a_key_error(
    tmp_path: Path, also: str
):
    file = tmp_path / "broken.py"
    file.write_text(f"{also}raise ValueError('no disk')\n")
    with pytest.raises(ValueError, match="no disk"):
        module_of_file("broken_by_its_code", file)
    assert "broken_by_its_code" not in sys.modules
