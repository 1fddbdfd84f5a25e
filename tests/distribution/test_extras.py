"""Where a package is missing, a command names the extra that installs it."""

from __future__ import annotations

import pytest

from placewire.extras import needing

IMPORTING = compile("import no_such_package", "imports", "exec")


def test_a_missing_package_is_told_with_its_extra(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, needing("optimizer"):
        exec(IMPORTING, {"__name__": "placewire.optimizer.problem"})
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "optimizer: the package no_such_package is not installed, which this command needs; "
        "pip install 'placewire[optimizer]'\n"
    )


@pytest.mark.parametrize("module", ["my_model", "placewire_of_mine"])
def test_a_missing_module_of_the_user_is_not_taken_for_one_of_ours(module: str) -> None:
    with pytest.raises(ModuleNotFoundError), needing("optimizer"):
        exec(IMPORTING, {"__name__": module})
