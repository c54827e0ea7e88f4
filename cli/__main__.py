"""`python -m penstock.cli`: the same as `penstock`."""

import sys

from . import main

sys.exit(main())
