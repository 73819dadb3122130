"""What several test files share."""
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data that CAPTIONLAB_DATA names; without it the test is skipped."""
    folder = os.environ.get("CAPTIONLAB_DATA")
    if not folder:
        pytest.skip("CAPTIONLAB_DATA is not set: no real data here")
    return Path(folder)
