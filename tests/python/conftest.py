import os

import pytest
from hypothesis import settings

# The same examples on every run, and no deadline: the first call into torch is slow.
settings.register_profile("ddc", derandomize=True, deadline=None)
settings.load_profile("ddc")


@pytest.fixture(scope="session", autouse=True)
def folder_of_all_processes(tmp_path_factory):
    """A folder that the processes of pytest-xdist share, for what takes long to find."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ["DDC_SHARED_FOLDER"] = str(tmp_path_factory.getbasetemp().parent)
