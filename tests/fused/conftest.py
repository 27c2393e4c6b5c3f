"""The fused pass is tested twice: with torch's operations, and with its compiled step."""

import os
import shutil

import pytest

from attnscope.fused import weigh
from attnscope.fused.compiled import load_compiled
from attnscope.private import VARIABLE


@pytest.fixture(scope="package", autouse=True, params=["operations of torch", "compiled"])
def step(request, tmp_path_factory):
    """Which of the two computes the weights of a tile."""
    if request.param == "compiled" and shutil.which(os.environ.get("CXX") or "c++") is None:
        pytest.skip("no compiler on this machine")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled":
            patch.setenv(VARIABLE, str(tmp_path_factory.getbasetemp() / "cache"))
        for cached in (load_compiled, weigh.scripted):
            cached.cache_clear()
        assert load_compiled() is (request.param == "compiled")
        yield request.param
        for cached in (load_compiled, weigh.scripted):
            cached.cache_clear()
