"""`python -m resilin.operator`."""

import sys

from resilin.operator.main import main

sys.exit(main())
