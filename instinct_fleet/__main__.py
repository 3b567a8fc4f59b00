"""Allow ``python -m instinct_fleet``."""

import sys

from instinct_fleet.cli import main

sys.exit(main())
