"""What several test files share."""
import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data that CAPTIONLAB_DATA names; without it the test is skipped."""
    folder = os.environ.get("CAPTIONLAB_DATA")
    if not folder:
        pytest.skip("CAPTIONLAB_DATA is not set: no real data here")
    return Path(folder)


# The first call of a torch operator is slow, which is no flaw of the test that makes it.
settings.register_profile("captionlab", deadline=None)
settings.load_profile("captionlab")
