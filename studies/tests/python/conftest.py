import sys
from pathlib import Path

# What the tests of the library share.
sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "python"))
