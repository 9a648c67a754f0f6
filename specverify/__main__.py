"""``python -m specverify`` is the specverify command."""

import sys

from specverify.cli import main

sys.exit(main())
