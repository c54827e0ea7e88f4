"""`python -m penstock`: the same as `penstock`."""

import sys

from .cli import main

sys.exit(main())
