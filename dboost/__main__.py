"""``python -m dboost`` is the command ``dboost``."""

import sys

from dboost.cli import main

sys.exit(main())
