"""``python -m specverify.report [RUN_DIR or certificate.json] [--out DIR]``."""

import sys

from specverify.report.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
